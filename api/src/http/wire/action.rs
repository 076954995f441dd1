//! Actions of hits.

use serde::{Deserialize, Deserializer, de::Error};
use serde_json::Value;
use utoipa::ToSchema;

use crate::http::Problem;

/// Syntax of the actions, for error messages.
const FORMS: &str = r#"the actions are "record", "stack", "count", "stop", {"set_reg": {"reg": "ax", "value": "0x1"}}, {"write_mem": {"to": "+8(%di)", "size": 4, "value": "0x0"}} and {"return": "-12"}"#;
/// Longest part of a wrong action that its error repeats, in characters.
const EXCERPT: usize = 100;

/// One step of what a hit does, in JSON: the schema of [`exoprobe_probes::Action`].
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Action {
    /// Write an event with the definition's arguments.
    Record,
    /// Write an event that has the back-trace as well.
    Stack,
    /// Only count the hit: it is in the books as filtered.
    Count,
    /// Pause the guest at this hit until it is resumed.
    Stop,
    /// Change a register.
    SetReg {
        /// Its name, with or without `%`; not `ip`.
        #[schema(example = "ax", pattern = "^%?([abcd]x|[sd]i|[bs]p|r[89]|r1[0-5]|flags|[cs]s)$")]
        reg: String,
        /// Its new value.
        value: Number,
    },
    /// Write guest memory; where none is mapped nothing happens.
    WriteMem {
        /// The place that a fetch argument of this text would read.
        #[schema(example = "+8(%di)")]
        to: String,
        /// Bytes.
        size: Width,
        /// The value that is written.
        value: Number,
    },
    /// Leave the function at its entry, with this value. Kprobes only, and last.
    Return(Number),
}

/// 64 bits: text (`"0x1f"`, `"31"`, `"-12"`) or a number.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum Number {
    /// A number.
    #[schema(value_type = i64)]
    Number(serde_json::Number),
    /// Text.
    Text(NumberText),
}

/// A number of 64 bits as text.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[schema(
    example = "0x1f",
    pattern = "^(0[xX]0*[0-9a-fA-F]{1,16}|-0[xX]0*[0-9a-fA-F]{1,15}|-?0[0-7]{0,20}|[1-9][0-9]{0,18}|-[1-9][0-9]{0,17})$"
)]
pub struct NumberText(pub String);

/// Bytes of a number: 1, 2, 4 or 8.
#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[schema(value_type = u8, example = 4)]
pub struct Width(pub u8);

/// An action as a client gave it: of the form of [`Action`]. What it names is looked at later.
#[derive(Clone, Debug)]
pub struct GivenAction(Value);

impl<'de> Deserialize<'de> for GivenAction {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let action = Value::deserialize(deserializer)?;
        match Action::deserialize(&action) {
            Ok(_) => Ok(Self(action)),
            Err(error) => Err(D::Error::custom(describe(&action, &error))),
        }
    }
}

impl TryFrom<GivenAction> for exoprobe_probes::Action {
    type Error = Problem;
    fn try_from(GivenAction(action): GivenAction) -> Result<Self, Problem> {
        Self::deserialize(&action)
            .map_err(|error| Problem::new("EINVAL", describe(&action, &error)))
    }
}

/// Which action is wrong, why, and what would be right.
fn describe(action: &Value, error: &serde_json::Error) -> String {
    let shown: String = action.to_string().chars().take(EXCERPT).collect();
    format!("the action {shown}: {error}; {FORMS}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn schema(action: &Value) -> Result<Action, serde_json::Error> {
        Action::deserialize(action)
    }

    /// Reads actions, and what they name.
    fn read(actions: Value) -> Result<Vec<exoprobe_probes::Action>, String> {
        let given: Vec<GivenAction> =
            serde_json::from_value(actions).map_err(|error| error.to_string())?;
        let read = given.into_iter().map(exoprobe_probes::Action::try_from);
        read.collect::<Result<_, _>>().map_err(|problem| problem.detail.clone())
    }

    #[test]
    fn every_action_is_as_its_schema_says() {
        let actions = json!([
            "record", "stack", "count", "stop",
            {"set_reg": {"reg": "ax", "value": "0x1"}}, {"set_reg": {"reg": "%r10", "value": 7}},
            {"write_mem": {"to": "+8(%di)", "size": 4, "value": "-1"}},
            {"return": "-12"}, {"return": -12}, {"return": "0xfffffffffffffff4"},
        ]);
        for action in actions.as_array().unwrap() {
            schema(action).unwrap();
        }
        let read = read(actions).unwrap();
        assert_eq!(read[9], read[8]);
        assert_eq!(read[9], read[7]);
        assert_eq!(read[9], exoprobe_probes::Action::Return(12_u64.wrapping_neg()));
        let written = serde_json::to_value(&read).unwrap();
        for action in written.as_array().unwrap() {
            schema(action).unwrap();
        }
        assert_eq!(self::read(written).unwrap(), read, "what is shown can be given again");
    }

    #[test]
    fn a_wrong_action_is_named_beside_the_right_ones() {
        let cases = [
            (json!("recrod"), "unknown variant `recrod`"),
            (json!("set_reg"), "the action \"set_reg\": invalid type"),
            (json!({"return": "x12"}), "`x12` is no number"),
            (json!({"return": "-"}), "`-` is no number"),
            (json!({"return": 1.5}), "a number of 64 bits"),
            (json!({"set_reg": {"reg": "zz", "value": 1}}), "`%zz` is no register: use ax"),
            (json!({"set_reg": {"reg": "ax"}}), "missing field `value`"),
            (json!({"set_reg": {"reg": "ax", "value": 1, "x": 1}}), "unknown field `x`"),
            (
                json!({"write_mem": {"to": "9di", "size": 4, "value": 1}}),
                "`9di` is no value: write",
            ),
            (json!({"write_mem": {"to": "%di", "size": 300, "value": 1}}), "expected u8"),
            (json!({"record": 1, "stop": 1}), "the action {"),
            (json!(5), "the action 5: "),
        ];
        for (action, part) in cases {
            let error = read(json!([action])).unwrap_err();
            assert!(error.contains(part) && error.contains(FORMS), "{action}: {error}");
        }
    }
}
