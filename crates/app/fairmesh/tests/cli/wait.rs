//! `fairmesh wait` and `fairmesh get --wait`.

use std::{
    net::TcpListener,
    path::Path,
    process::{Command, Stdio},
    thread,
};

use fairmesh_test_support::{free_port, skipped};

use super::{
    calls::echo,
    identities::Killed,
    support::{Mesh, fairmesh},
};

#[test]
fn wait_for_service_ends_with_first_serving_endpoint() {
    let mesh = Mesh::start();
    thread::scope(|scope| {
        let listed = scope.spawn(|| mesh.run(&["get", "endpoints", "shop/hello", "--wait=60s"]));
        let waited = scope.spawn(|| mesh.run(&["wait", "control", "shop/hello"]));
        mesh.apply("kind: Service\nname: shop/hello\n").ok();
        mesh.register("shop/hello", "hello-0", "eu", 8000);
        assert!(listed.join().unwrap().ok().contains("hello-0"));
        waited.join().unwrap().ok();
    });
}

#[test]
fn wait_for_policy_ends_when_it_is_applied() {
    let mesh = Mesh::start();
    thread::scope(|scope| {
        let listed = scope.spawn(|| mesh.run(&["get", "policies", "shop/hello", "--wait"]));
        mesh.apply("kind: Service\nname: shop/hello\n---\nkind: Policy\nservice: shop/hello\ntimeout: 5s\n")
            .ok();
        assert!(listed.join().unwrap().ok().contains("shop/hello"));
    });
}

#[test]
fn wait_succeeds_when_control_plane_starts_later() {
    let mut mesh = Mesh::empty();
    let address = mesh.address();
    let waiting = thread::spawn(move || fairmesh(&address, &["wait", "control"], ""));
    mesh.start_control();
    waiting.join().unwrap().ok();
}

#[test]
fn wait_succeeds_when_agent_socket_is_created_later() {
    let mesh = Mesh::empty();
    let command = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fairmesh"));
        command.env_clear().env("XDG_STATE_HOME", mesh.path("state")).stderr(Stdio::null());
        command
    };
    let mut waiting = command().args(["wait", "control"]).spawn().unwrap();
    // Over TCP, the control plane accepts nothing without an identity, and no agent provides one here.
    let grpc = format!("127.0.0.1:{}", free_port());
    let arguments =
        ["control", "--trust-domain", "prod", "--admin", "127.0.0.1:0", "--grpc", &grpc, "--data-dir"];
    let mut control = command();
    control.args(arguments).arg(mesh.path("state/fairmesh/control"));
    let _control = Killed(control.spawn().unwrap());
    assert!(waiting.wait().unwrap().success());
}

/// A command of an unprivileged user with this home, in a session without a runtime directory.
fn of_a_user(home: &Path, args: &[&str]) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-user=1000", env!("CARGO_BIN_EXE_fairmesh")]).args(args);
    command.env_clear().env("PATH", "/usr/bin:/bin").env("HOME", home);
    command
}

#[test]
fn unprivileged_agent_and_programs_use_same_socket() {
    let (mesh, port) = (Mesh::with_shop(), echo());
    let home = mesh.path("home");
    match of_a_user(&home, &["version", "--client"]).output() {
        Ok(output) if output.status.success() => {}
        refused => return skipped("a user namespace cannot be made", format!("{refused:?}")),
    }
    mesh.register("shop/catalog", "catalog-0", "eu", port);
    let arguments = ["agent", "--region", "eu", "--admin", "none", "--control", &mesh.address()];
    let mut agent = of_a_user(&home, &arguments);
    let _agent = Killed(agent.stderr(Stdio::null()).spawn().unwrap());
    assert!(of_a_user(&home, &["wait", "agent"]).status().unwrap().success());
    assert!(home.join(".local/state/fairmesh/run/agent.sock").exists());
    let called = of_a_user(&home, &["call", "shop/catalog", "/items"]).output().unwrap();
    assert!(called.stdout.starts_with(b"GET /items"), "{called:?}");
    // Without a home directory too, the error says which option to give.
    let mut homeless = of_a_user(&home, &arguments);
    let refused = homeless.args(["--state-dir", "/nowhere"]).env_remove("HOME").output().unwrap();
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(refused.status.code() == Some(2) && said.contains("--listen"), "{said}");
}

#[test]
fn wait_times_out_and_names_missing_record() {
    let mesh = Mesh::with_shop();
    let in_vain = |args: &[&str]| mesh.run(args).fails(1);
    let listed = in_vain(&["get", "endpoints", "shop/catalog", "--wait=100ms"]);
    assert!(listed.contains("no endpoint of shop/catalog is serving after 100ms"), "{listed}");
    let waited = in_vain(&["wait", "shop/catalog", "--timeout", "3s"]);
    assert!(waited.contains("no endpoint of shop/catalog is serving after 3s"), "{waited}");
    let agent = in_vain(&["wait", "agent", "--agent", "unix:/nowhere/agent.sock", "--timeout", "2s"]);
    assert!(agent.contains("the agent at unix:/nowhere/agent.sock is not ready"), "{agent}");
    let nobody = format!("127.0.0.1:{}", free_port());
    let proxy = in_vain(&["wait", "proxy", "--admin", &nobody, "--timeout", "2s"]);
    assert!(proxy.contains("no proxy responds at"), "{proxy}");
    assert!(mesh.run(&["wait", "agnet"]).fails(2).contains("'agnet' is neither a process nor a service"));
}

#[test]
fn wait_times_out_with_silent_control_plane() {
    // The listener accepts connections and never responds.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    fairmesh(&address, &["wait", "control", "--timeout", "200ms"], "").fails(1);
}
