//! Places of definitions.

use super::*;

#[test]
fn a_place_may_be_an_offset_from_where_the_text_begins() {
    let fake = Fake::booted_with("ffffffff81000000 T _stext\n");
    // The function's parameters are known, as by its own name.
    fake.register("p:far _text+8192 a=$arg1");
    fake.register("p:inside _stext+8196");
    fake.register("r:back _text+4096");
    let place = |event: &str| {
        let status = fake.status(event);
        (status.symbol_name.unwrap(), status.offset, status.definition)
    };
    let expected = ("far_off".to_owned(), 0, "p:kprobes/far _text+8192 a=$arg1".to_owned());
    assert_eq!(place("far"), expected);
    assert_eq!(place("inside"), ("far_off".to_owned(), 4, "p:kprobes/inside _stext+8196".into()));
    assert_eq!(place("back").0, "work");
    fake.call_work(STACK);
    fake.run(FAR_OFF);
    assert_eq!(["far", "inside", "back"].map(|event| fake.hits(event)), [1, 0, 1]);

    let refused = |line: &str| {
        let definition = parse_line(line).unwrap();
        fake.engine.register(definition).unwrap_err().to_string()
    };
    for (line, reason) in [
        ("p:no _text+8194", "instruction"),
        ("r:no _text+8196", "entry"),
        ("p:no _text+268435456", "text"),
        ("p:no work+256", "is beyond the function"),
    ] {
        let error = refused(line);
        assert!(error.contains(reason), "{line}: {error}");
    }
}
