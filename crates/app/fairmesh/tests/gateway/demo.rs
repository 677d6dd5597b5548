//! Runs the demonstration of `make demo-gateway` with fewer requests: network namespaces, unmodified curl and Python.

use std::{path::Path, process::Command, time::Duration};

use fairmesh_test_support::{binary, skipped};
use serde_json::Value;
use tokio::time::Instant;

/// Connections of each tenant, and requests on each connection.
const CONNECTIONS: &str = "25";
const REQUESTS: &str = "40";
/// Exit code of the demo if this machine lacks a requirement.
const CANNOT_RUN: i32 = 3;

/// Runs clients of the demo, without its networks: red fails, and blue would wait for it.
const ONE_CLIENT_FAILS: &str = r#"
import sys
sys.path.insert(0, sys.argv[1])
import demo
demo.CLIENT = """
import sys, time
if sys.argv[1] == "red":
    sys.exit("red has no route")
time.sleep(600)
"""
clients = demo.Demo("none", True)
clients.inside = lambda name, args: args
try:
    clients.clients(1, 1)
except demo.Failed as failed:
    print(failed)
"#;

#[test]
fn tenants_with_equal_addresses_reach_only_own_services() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../examples/gateway/demo.py");
    let run = Command::new("python3")
        .arg(script)
        .args(["--json", "--connections", CONNECTIONS, "--requests", REQUESTS, "--binary"])
        .arg(binary())
        .output();
    let output = match run {
        Ok(output) if output.status.code() != Some(CANNOT_RUN) => output,
        Ok(output) => return skipped("tenants cannot be made", String::from_utf8_lossy(&output.stderr)),
        Err(error) => return skipped("the demo cannot be run", error),
    };
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let result: Value = serde_json::from_str(out.lines().last().unwrap_or_default())
        .unwrap_or_else(|error| panic!("{error}: {out}{err}"));
    assert_eq!(result["wrong"], 0, "{result}");
    for tenant in ["red", "blue"] {
        assert_eq!(result["answers"][tenant]["right"], 25 * 40, "{result}");
        assert_eq!(result["answers"][tenant]["wrong"], 0, "{result}");
    }
    assert!(result["joined"].as_u64().unwrap() >= 50, "each connection has one id in both logs: {result}");
    let replaced = &result["replaced"];
    assert_eq!(replaced["wrong"], 0, "{result}");
    assert!(replaced["calls"].as_u64().unwrap() > 0, "{result}");
    for none in ["failed_later", "failed_at_upgrade"] {
        assert_eq!(replaced[none].as_array().unwrap().len(), 0, "{none}: {result}");
    }
    assert!(output.status.success(), "{out}{err}");
}

#[test]
fn demo_ends_at_once_when_one_client_fails() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../examples/gateway");
    let began = Instant::now();
    let run = Command::new("python3").args(["-B", "-c", ONE_CLIENT_FAILS]).arg(folder).output();
    let output = match run {
        Ok(output) => output,
        Err(error) => return skipped("the demo cannot be run", error),
    };
    let out = String::from_utf8_lossy(&output.stdout);
    assert!(out.contains("red-client has ended") && out.contains("red has no route"), "{output:?}");
    assert!(began.elapsed() < Duration::from_secs(60), "it does not wait for the other client");
}
