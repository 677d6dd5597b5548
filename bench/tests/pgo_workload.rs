//! The load that a build for production learns from (`scripts/release.sh`).

use std::process::Command;

#[test]
fn every_protocol_is_called_through_a_proxy_that_ends_by_itself() {
    let trained = Command::new(env!("CARGO_BIN_EXE_fairmesh-bench")).arg("pgo-workload").output().unwrap();
    let said = String::from_utf8_lossy(&trained.stderr);
    assert!(trained.status.success(), "{said}");
    for protocol in ["http1", "http2", "grpc"] {
        let line = said.lines().find_map(|line| line.strip_prefix(protocol)).expect("it is told of");
        let calls = line.trim_matches(|c: char| !c.is_ascii_digit()).parse::<u64>().unwrap();
        assert!(calls > 100, "{said}");
    }
}
