//! Certificates for programs of users other than the agent's.

use std::{
    fs::{File, Permissions, copy, hard_link, read_to_string, set_permissions},
    os::unix::{fs::PermissionsExt as _, process::CommandExt as _},
    path::PathBuf,
    process::{Command, Stdio},
};

use fairmesh_test_support::{free_port, skipped};

use super::{
    calls::echo,
    identities::{Killed, agent, domain, has_certificate, token},
    support::{Mesh, fairmesh, wait_until},
};

/// A user id that no machine has.
const USER: u32 = 54_001;

/// Whether the test can run programs as other users.
fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        skipped("programs cannot be run as another user", "this is not root");
    }
    root
}

/// Copies the command beside the mesh's files, since the build folder may be closed to other users.
fn command_for_all_users(mesh: &Mesh) -> PathBuf {
    let (built, path) = (env!("CARGO_BIN_EXE_fairmesh"), mesh.path("fairmesh"));
    if hard_link(built, &path).is_err() {
        copy(built, &path).unwrap();
    }
    path
}

/// Starts `fairmesh register` for a service as another user, with its log in a file.
fn register(mesh: &Mesh, agent: &str, service: &str) -> Killed {
    let [listen, program] = [free_port(), echo()].map(|port| format!("127.0.0.1:{port}"));
    let log = File::create(mesh.path("register.log")).unwrap();
    let mut command = Command::new(command_for_all_users(mesh));
    command
        .args(["register", service, "--region", "eu", "--agent", agent])
        .args(["--address", &listen, "--program", &program])
        .env_clear()
        .uid(USER)
        .gid(USER)
        .stdout(Stdio::null())
        .stderr(log);
    Killed(command.spawn().unwrap())
}

fn apply_workload(mesh: &Mesh, service: &str, rest: &str) {
    mesh.apply(&format!("kind: Workload\nservice: {service}\n{rest}\n")).ok();
}

#[test]
fn program_of_another_user_needs_workload_record_that_selects_it() {
    if !is_root() {
        return;
    }
    let (mesh, _) = domain();
    set_permissions(mesh.path("."), Permissions::from_mode(0o755)).unwrap();
    mesh.apply("kind: Service\nname: shop/cart\n").ok();
    let (_agent, address) = agent(&mesh, "web-1", &mesh.address(), None);
    wait_until("the agent joins", || has_certificate(&mesh, "web-1"));
    let _register = register(&mesh, &address, "shop/cart");
    let executable = mesh.path("fairmesh").display().to_string();
    let said = |what: &str| read_to_string(mesh.path("register.log")).unwrap().contains(what);
    let endpoints = || mesh.run(&["get", "endpoints", "shop/cart", "--json"]).json();
    let calls = || mesh.run(&["call", "shop/cart", "/", "--agent", &address]).code == Some(0);
    wait_until("it is refused", || {
        said(&format!(
            "apply one, such as {{kind: Workload, service: shop/cart, programs: [{{uid: {USER}}}]}}"
        ))
    });
    apply_workload(&mesh, "shop/cart", &format!("programs: [{{uid: {USER}, executable: /usr/bin/cart}}]"));
    wait_until("it learns which selector fails", || {
        said(&format!("executable is {executable}, not /usr/bin/cart"))
    });
    assert!(!calls());
    let selector = format!("uid: {USER}, gid: {USER}, executable: {executable}");
    apply_workload(&mesh, "shop/cart", &format!("programs: [{{{selector}, networkNamespace: host}}]"));
    wait_until("it is called", calls);
    assert_eq!(endpoints()[0]["mtls"], true);
}

#[test]
fn workload_record_restricts_which_agents_may_vouch_for_program() {
    let (mesh, tcp) = domain();
    apply_workload(&mesh, "shop/cart", "agents: [web-2]");
    for name in ["web-1", "web-2"] {
        let (_agent, address) = agent(&mesh, name, &tcp, Some(&token(&mesh, &[name])));
        wait_until("the agent joins", || has_certificate(&mesh, name));
        let requested = |service| super::identities::request_certificate(&address, service);
        wait_until("it issues certificates", || requested("shop/other").is_empty());
        let refused = requested("shop/cart");
        assert_eq!(refused.contains("names other agents than web-1"), name == "web-1", "{refused}");
    }
}

#[test]
fn workload_record_is_listed_compared_deleted_and_restored() {
    let mesh = Mesh::start();
    apply_workload(&mesh, "shop/cart", "programs: [{uid: 1001, cgroup: /system.slice/cart.service}]");
    let listed = mesh.run(&["get", "workloads", "shop/cart"]).ok();
    assert!(listed.contains("uid 1001, cgroup /system.slice/cart.service"), "{listed}");
    let document = "kind: Workload\nservice: shop/cart\nprograms: [{uid: 1002}]\n";
    let difference = fairmesh(&mesh.address(), &["diff", "-f", "-"], document);
    assert_eq!(difference.code, Some(3), "{difference:?}");
    assert!(difference.out.contains("uid: 1002"), "{difference:?}");
    mesh.run(&["delete", "workload", "shop/cart"]).ok();
    assert_eq!(mesh.run(&["get", "workloads", "--json"]).json(), serde_json::json!([]));
    mesh.run(&["rollback", "workload", "shop/cart"]).ok();
    assert_eq!(mesh.run(&["get", "workloads", "--json"]).json()[0]["programs"][0]["uid"], 1001);
    let refused = "kind: Workload\nservice: shop/cart\nprograms: [{executable: /bin/cart}]\n";
    let refused = mesh.apply(refused).err;
    assert!(refused.contains("every user could match"), "{refused}");
}
