//! Other systems get programs that compile, run nothing and say why.
#![cfg(not(supported))]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::process::Command;

#[test]
fn both_programs_refuse_and_name_a_remedy() {
    let programs = [env!("CARGO_BIN_EXE_paddock-core"), env!("CARGO_BIN_EXE_paddock")];
    for (program, words) in programs
        .into_iter()
        .flat_map(|program| [(program, &[][..]), (program, &["run", "--", "echo", "ran"])])
    {
        let output = Command::new(program).args(words).output().unwrap();
        assert_eq!(output.status.code(), Some(125), "{program} {words:?}");
        assert_eq!(output.stdout, b"");
        let message = String::from_utf8(output.stderr).unwrap();
        assert!(message.starts_with("paddock: ") && message.contains("not supported"), "{message}");
        assert!(message.contains("\nhint: ") && message.contains("Linux 6.12"), "{message}");
    }
}
