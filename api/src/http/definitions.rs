//! Definitions of probes as clients send them: JSON, or lines of kprobe_events' language.

use std::fmt;

use exoprobe_probes::definition::{definition_lines, parse_conditional};
use exoprobe_probes::{ProbeDefinition, ProbeError};
use serde::Deserializer;
use serde::de::{SeqAccess, Visitor};

use super::integers::with_integers;
use super::problem::Problem;
use super::wire::{ProbeRequest, ProbeRequests};

/// Definitions as a client sent them.
pub(super) enum Definitions {
    /// One JSON object.
    One(Box<ProbeDefinition>),
    /// A JSON array.
    Array(Vec<ProbeDefinition>),
    /// Lines, each with its number from 1.
    Lines(Vec<(usize, ProbeDefinition)>),
}

impl Definitions {
    /// Reads a body by its content type.
    ///
    /// # Errors
    /// [`Problem`] that says where.
    pub(super) fn read(media_type: &str, body: &[u8]) -> Result<Self, Problem> {
        match media_type {
            "application/json" => Self::from_json(body),
            "text/plain" => Self::from_text(body),
            // What `curl -d` calls every body. No definition starts with a bracket.
            "application/x-www-form-urlencoded" => match body.trim_ascii_start().first() {
                Some(b'{' | b'[') => Self::from_json(body),
                _ => Self::from_text(body),
            },
            "" => Err(Problem::media_type("no content-type: application/json or text/plain")),
            other => Err(Problem::media_type(format!(
                "content-type {other}: send application/json or text/plain"
            ))),
        }
    }

    /// The definitions in order, and the numbers of their lines if they are lines.
    pub(super) fn into_parts(self) -> (Vec<usize>, Vec<ProbeDefinition>) {
        match self {
            Self::One(definition) => (Vec::new(), vec![*definition]),
            Self::Array(definitions) => (Vec::new(), definitions),
            Self::Lines(lines) => lines.into_iter().unzip(),
        }
    }

    fn from_json(body: &[u8]) -> Result<Self, Problem> {
        let parsed = parse_requests(body).or_else(|problem| match with_integers(body) {
            Some(body) => parse_requests(&body),
            None => Err(problem),
        });
        match parsed? {
            ProbeRequests::One(request) => Ok(Self::One(Box::new((*request).try_into()?))),
            ProbeRequests::Many(requests) => {
                let definitions = requests.into_iter().enumerate().map(|(index, request)| {
                    ProbeDefinition::try_from(request).map_err(|problem| problem.at_index(index))
                });
                non_empty(definitions.collect::<Result<_, _>>()?).map(Self::Array)
            }
        }
    }

    fn from_text(body: &[u8]) -> Result<Self, Problem> {
        let text = str::from_utf8(body).map_err(|error| {
            Problem::malformed(format!("the definitions are not UTF-8: {error}"))
        })?;
        let parsed = definition_lines(text).enumerate().map(|(index, (number, line))| {
            let definition = parse_conditional(line).map_err(|error| {
                Problem::from(ProbeError::Syntax(error)).at_line(number).at_index(index)
            })?;
            Ok((number, definition))
        });
        non_empty(parsed.collect::<Result<_, Problem>>()?).map(Self::Lines)
    }
}

/// Looks for the bracket itself: serde's untagged enums do not say what is wrong, and where.
fn parse_requests(body: &[u8]) -> Result<ProbeRequests, Problem> {
    let malformed = |error: &serde_json::Error| Problem::malformed(error.to_string());
    if body.trim_ascii_start().first() != Some(&b'[') {
        let one = serde_json::from_slice(body).map(ProbeRequests::One);
        return one.map_err(|error| malformed(&error));
    }
    let mut requests = Vec::new();
    let mut json = serde_json::Deserializer::from_slice(body);
    match json.deserialize_seq(Collect(&mut requests)).and_then(|()| json.end()) {
        Ok(()) => Ok(ProbeRequests::Many(requests)),
        Err(error) if error.is_data() => Err(malformed(&error).at_index(requests.len())),
        Err(error) => Err(malformed(&error)),
    }
}

/// Reads an array so far as it is right: how far that is says which element is wrong.
struct Collect<'a>(&'a mut Vec<ProbeRequest>);

impl<'de> Visitor<'de> for Collect<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array of probe definitions")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut array: A) -> Result<(), A::Error> {
        while let Some(request) = array.next_element()? {
            self.0.push(request);
        }
        Ok(())
    }
}

fn non_empty<T>(definitions: Vec<T>) -> Result<Vec<T>, Problem> {
    match definitions.is_empty() {
        true => Err(Problem::new("EINVAL", "there is no probe definition in the body")),
        false => Ok(definitions),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(media_type: &str, body: &str) -> Problem {
        Definitions::read(media_type, body.as_bytes()).err().expect("it is wrong")
    }

    #[test]
    fn lines_are_numbered_and_comments_do_not_count() {
        let text = "# two probes\n\np:a f\r\n  # more\np:b g+4 %di\n";
        let Ok(Definitions::Lines(lines)) = Definitions::read("text/plain", text.as_bytes()) else {
            panic!("these are lines")
        };
        let found: Vec<_> = lines.iter().map(|(n, d)| (*n, d.event_name())).collect();
        assert_eq!(found, [(3, "a".to_owned()), (5, "b".to_owned())]);
        let wrong = problem("text/plain", "p:a f\n#\np:b g %zz\n");
        assert_eq!((wrong.line, wrong.index, wrong.position), (Some(3), Some(1), Some(6)));
        assert!(wrong.detail.starts_with("line 3: "), "{}", wrong.detail);
    }

    #[test]
    fn a_line_may_end_with_a_filter() {
        let line = "p:a f name=%di:u32 if name == 0x3 && comm == \"a#b\" # c\n";
        let Ok(Definitions::Lines(lines)) = Definitions::read("text/plain", line.as_bytes()) else {
            panic!("this is a line")
        };
        let filter = lines[0].1.filter.as_ref().map(ToString::to_string);
        assert_eq!(filter.as_deref(), Some("name == 0x3 && comm == \"a#b\""));
        assert_eq!(lines[0].1.args.len(), 1);
        let wrong = problem("text/plain", "p:a f if common_pid ==\n");
        assert_eq!((wrong.line, wrong.status), (Some(1), 422));
        assert!(wrong.position.is_some_and(|position| position >= 9), "{wrong:?}");
    }

    #[test]
    fn the_content_type_decides_and_curl_need_not_give_one() {
        let form = "application/x-www-form-urlencoded";
        assert!(matches!(Definitions::read(form, b"p:a f"), Ok(Definitions::Lines(_))));
        assert!(matches!(
            Definitions::read(form, b" {\"symbol_name\":\"f\"}"),
            Ok(Definitions::One(_))
        ));
        assert!(matches!(
            Definitions::read("application/json", b" [{}]"),
            Ok(Definitions::Array(_))
        ));
        assert_eq!(problem("application/xml", "<p/>").status, 415);
        assert_eq!(problem("", "p:a f").status, 415);
        assert_eq!(problem("application/json", "p:a f").status, 400);
    }

    #[test]
    fn a_whole_number_is_an_integer() {
        let body =
            br#"[{"symbol_name":"f"},{"kind":"r","addr":4096.0,"maxactive":7.0,"offset":-0.0}]"#;
        let Ok(Definitions::Array(read)) = Definitions::read("application/json", body) else {
            panic!()
        };
        assert_eq!((read[1].addr.unwrap().0, read[1].maxactive), (4096, Some(7)));
        for wrong in ["7.5", "1e300", "9007199254740992.0"] {
            let body = format!(r#"{{"symbol_name":"f","offset":{wrong}}}"#);
            assert_eq!(problem("application/json", &body).status, 400, "{wrong}");
        }
    }

    #[test]
    fn nothing_at_all_is_an_error() {
        assert_eq!(problem("text/plain", "\n# none\n").status, 422);
        assert_eq!(problem("application/json", "[]").status, 422);
        let array = r#"[{"symbol_name":"f"},{"symbol_name":"f","args":["%zz"]}]"#;
        let wrong = problem("application/json", array);
        assert_eq!((wrong.status, wrong.index), (422, Some(1)));
    }

    #[test]
    fn a_wrong_element_of_an_array_is_told_by_its_index() {
        let array = r#"[{"symbol_name":"f"},{"symbol_name":"g"},
            {"symbol_name":"h","actions":["recrod"]}]"#;
        let wrong = problem("application/json", array);
        assert_eq!((wrong.status, wrong.index), (400, Some(2)));
        assert!(wrong.detail.contains("`recrod`") && wrong.detail.contains("line 2"), "{wrong:?}");
        assert_eq!(problem("application/json", r#"[{"symbol_name":"f"},7]"#).index, Some(1));
        let cut_off = problem("application/json", r#"[{"symbol_name":"f"},"#);
        assert_eq!((cut_off.status, cut_off.index), (400, None), "no probe's fault");
        assert_eq!(problem("application/json", r#"[{"symbol_name":"f"}] x"#).status, 400);
    }
}
