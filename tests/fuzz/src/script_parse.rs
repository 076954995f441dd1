//! A script of the bpftrace language, as text.

use exoprobe_script::{NoKernel, Options, Script, check};

pub(crate) fn run(text: &[u8]) {
    let Ok(text) = std::str::from_utf8(text) else { return };
    let params = ["5".to_owned(), "text".to_owned()];
    let error = match Script::parse(text, &params) {
        Err(error) => error,
        Ok(script) => match check(&script, &NoKernel, &Options::default()) {
            Err(error) => error,
            Ok(program) => {
                assert!(program.explain().ends_with('\n'));
                return;
            }
        },
    };
    assert!(!error.errors.is_empty());
    assert!(error.errors.iter().all(|it| it.span.start <= text.len() && !it.message.is_empty()));
    assert!(error.to_string().contains("error: "));
}
