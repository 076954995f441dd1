//! Where functions returned to, by name.

use std::collections::HashMap;

use serde::Deserialize;

use crate::client::{ApiPath, Client, ClientError, EventRecord};

/// Places remembered. More are forgotten, and asked for again.
const MOST: usize = 4096;
/// Most symbols of one name that are looked at.
const NAMESAKES: usize = 100;

/// Identifies a return: function, its address, and the address returned to. All of them, because a
/// kernel that booted again may be elsewhere.
type Return = (String, String, String);

/// Asks the service for the names of return addresses, once each.
pub(super) struct Callers<'c> {
    client: &'c Client,
    known: HashMap<Return, Option<String>>,
}

#[derive(Deserialize)]
struct Symbol {
    name: String,
    addr: String,
    module: Option<String>,
    offset: Option<u64>,
}

impl<'c> Callers<'c> {
    /// Sends no request yet.
    pub(super) fn new(client: &'c Client) -> Self {
        Self { client, known: HashMap::new() }
    }

    /// Where a return probe's function returned to, as `SYMBOL+0xOFFSET`. `None` where unknown:
    /// outside all symbols, or in an event from before the kernel booted again elsewhere.
    pub(super) async fn of(&mut self, event: &EventRecord) -> Option<String> {
        let (ret_addr, symbol) = (event.ret_addr.clone()?, event.symbol_name.clone()?);
        let key = (symbol, event.addr.clone(), ret_addr);
        if let Some(known) = self.known.get(&key) {
            return known.clone();
        }
        let found = match self.ask(event, &key).await {
            Ok(found) => found,
            // It will be refused again.
            Err(ClientError::Refused(_)) => None,
            Err(_) => return None,
        };
        if self.known.len() >= MOST {
            self.known.clear();
        }
        self.known.insert(key, found.clone());
        found
    }

    async fn ask(
        &self,
        event: &EventRecord,
        (symbol, addr, ret_addr): &Return,
    ) -> Result<Option<String>, ClientError> {
        // The symbols are those of now, the event may be older.
        let path = ApiPath::new(&["symbols"]).query("name", symbol).query("limit", NAMESAKES);
        let namesakes: Vec<Symbol> = serde_json::from_slice(&self.client.get(&path).await?)?;
        let start = hex(addr).and_then(|addr| addr.checked_sub(event.offset));
        if start.is_none() || !namesakes.iter().any(|found| hex(&found.addr) == start) {
            return Ok(None);
        }
        let path = ApiPath::new(&["symbols"]).query("at", ret_addr).query("limit", 1);
        let found: Vec<Symbol> = serde_json::from_slice(&self.client.get(&path).await?)?;
        Ok(found.first().and_then(shown))
    }
}

fn hex(text: &str) -> Option<u64> {
    u64::from_str_radix(text.strip_prefix("0x")?, 16).ok()
}

fn shown(symbol: &Symbol) -> Option<String> {
    let Symbol { name, module, offset, .. } = symbol;
    let offset = (*offset)?;
    Some(match module {
        Some(module) => format!("{module}:{name}+{offset:#x}"),
        None => format!("{name}+{offset:#x}"),
    })
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use axum::Router;
    use axum::extract::RawQuery;
    use axum::http::StatusCode;
    use axum::routing::get;

    use super::*;
    use crate::client::testing::Fake;

    fn returned(addr: &str, ret_addr: &str) -> EventRecord {
        serde_json::from_value(serde_json::json!({"seq": 1, "time": 0.0, "vcpu": 0, "event": "e",
            "symbol_name": "f", "offset": 0, "addr": addr, "ret_addr": ret_addr}))
        .unwrap()
    }

    /// A kernel with `f` at 0x100 and `ext4:g` from 0x200 on; and what it was asked.
    fn kernel() -> (Fake, Arc<Mutex<Vec<String>>>) {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&asked);
        let answer = async move |RawQuery(query): RawQuery| {
            let query = query.unwrap();
            let (status, body) = match query.as_str() {
                "name=f&limit=100" => (StatusCode::OK, r#"[{"name":"f","addr":"0x100"}]"#),
                "at=0x204&limit=1" => {
                    (StatusCode::OK, r#"[{"name":"g","addr":"0x200","module":"ext4","offset":4}]"#)
                }
                _ => (StatusCode::NOT_FOUND, r#"{"detail":"no"}"#),
            };
            noted.lock().unwrap().push(query);
            (status, body)
        };
        (Fake::serve(Router::new().route("/v1/symbols", get(answer))), asked)
    }

    #[tokio::test]
    async fn each_caller_is_asked_for_once() {
        let (fake, asked) = kernel();
        let client = fake.client();
        let mut callers = Callers::new(&client);
        for _ in 0..2 {
            let found = callers.of(&returned("0x100", "0x204")).await;
            assert_eq!(found.as_deref(), Some("ext4:g+0x4"));
            assert_eq!(callers.of(&returned("0x100", "0x999")).await, None, "outside all symbols");
        }
        assert_eq!(asked.lock().unwrap().len(), 4, "{asked:?}");
        fake.stop();
        assert_eq!(callers.of(&returned("0x100", "0x204")).await.as_deref(), Some("ext4:g+0x4"));
    }

    #[tokio::test]
    async fn an_event_of_a_kernel_that_was_elsewhere_gets_no_name() {
        let (fake, _) = kernel();
        let client = fake.client();
        let mut callers = Callers::new(&client);
        assert_eq!(callers.of(&returned("0x9100", "0x204")).await, None);
        let mut nowhere = returned("0x100", "0x204");
        nowhere.symbol_name = None;
        assert_eq!(callers.of(&nowhere).await, None);
    }
}
