//! The workload from which a production build learns its profile (`scripts/release.sh`).

use std::process::Command;

#[test]
fn pgo_workload_calls_every_protocol_and_its_proxy_exits() {
    let trained = Command::new(env!("CARGO_BIN_EXE_fairmesh-bench")).arg("pgo-workload").output().unwrap();
    let said = String::from_utf8_lossy(&trained.stderr);
    assert!(trained.status.success(), "{said}");
    for protocol in ["http1", "http2", "grpc"] {
        let line = said.lines().find_map(|line| line.strip_prefix(protocol)).expect("it is told of");
        let calls = line.trim_matches(|c: char| !c.is_ascii_digit()).parse::<u64>().unwrap();
        assert!(calls > 100, "{said}");
    }
}
