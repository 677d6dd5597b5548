//! Agents and replicas that were or will be members of a trust domain, but have no certificate now.

use std::{
    fs::{File, read_to_string},
    process::{Command, Stdio},
    time::Duration,
};

use fairmesh_identity::{Authority, Clock as _, Credentials, PrivateKey, SystemClock};
use fairmesh_model::{Label, MeshRole, SpiffePath, TrustDomain};
use fairmesh_test_support::free_port;

use super::{
    identities::{Killed, agent, domain, has_certificate, request_certificate, token},
    support::{Mesh, fairmesh, wait_until},
};

/// Puts an expired certificate into the state directory of an agent, as if the agent had stopped some days ago.
fn keep_expired(mesh: &Mesh, name: &str) {
    let (prod, then) =
        (TrustDomain::new("prod").unwrap(), SystemClock.now() - Duration::from_secs(3 * 86_400));
    let authority = Authority::open(&mesh.path("other-ca"), &prod, then).unwrap();
    let key = PrivateKey::generate().unwrap();
    let id = SpiffePath::Mesh(MeshRole::Agent, Label::new(name).unwrap()).within(&prod);
    let issued = authority.issue(&key.signing_request().unwrap(), &id, then).unwrap();
    let credentials = Credentials::new(key, issued.chain, authority.bundle(), then).unwrap();
    std::fs::create_dir_all(mesh.path(name)).unwrap();
    credentials.save(&mesh.path(name).join("identity")).unwrap();
}

#[test]
fn agent_with_expired_certificate_says_how_to_rejoin() {
    let (mesh, tcp) = domain();
    keep_expired(&mesh, "web-1");
    let (late, address) = agent(&mesh, "web-1", &tcp, None);
    let refused = request_certificate(&address, "shop/cart");
    for part in ["the certificate has expired", "fairmesh identity token web-1", "--join-token-file"] {
        assert!(refused.contains(part), "{refused}");
    }
    drop(late);
    std::fs::remove_file(mesh.path("web-1.sock")).unwrap();
    let token = token(&mesh, &["web-1"]);
    let (_back, address) = agent(&mesh, "web-1", &tcp, Some(&token));
    wait_until("it is a member again", || request_certificate(&address, "shop/cart").is_empty());
}

#[test]
fn local_agent_rejoins_without_token() {
    let (mesh, _) = domain();
    keep_expired(&mesh, "web-1");
    let (_agent, address) = agent(&mesh, "web-1", &mesh.address(), None);
    wait_until("it is a member again", || request_certificate(&address, "shop/cart").is_empty());
}

/// Starts a replica at this TCP port; its agent does not run unless it is started at the address `agent`.
fn replica(mesh: &Mesh, listen: &str, agent: &str, more: &[&str]) -> Killed {
    let log = File::options().append(true).create(true).open(mesh.path("replica.log")).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_fairmesh"));
    command
        .args(["rib", "replica", "--name", "r", "--admin", "none", "--listen", listen, "--agent", agent])
        .args(["--upstream", &mesh.address(), "--state-dir"])
        .arg(mesh.path("replica"))
        .args(more)
        .env_clear()
        .stdout(Stdio::null())
        .stderr(log);
    Killed(command.spawn().unwrap())
}

#[test]
fn replica_refuses_plaintext_once_it_knows_trust_domain() {
    let (mesh, _) = domain();
    mesh.apply("kind: Service\nname: shop/cart\n").ok();
    let listen = format!("127.0.0.1:{}", free_port());
    let absent = format!("unix:{}", mesh.path("web-1.sock").display());
    let list = || fairmesh(&listen, &["get", "services"], "");
    let started = |n: usize| {
        let log = read_to_string(mesh.path("replica.log")).unwrap_or_default();
        log.matches("the replica serves").count() >= n
    };
    // Required by the option.
    let told = replica(&mesh, &listen, &absent, &["--require-identity"]);
    wait_until("it serves", || started(1));
    list().fails(1);
    drop(told);
    // Learned from the records that the replica follows, and then from its copy of the records.
    for n in [2, 3] {
        let untold = replica(&mesh, &listen, &absent, &[]);
        wait_until("it serves", || started(n));
        wait_until("it refuses plaintext", || list().code == Some(1));
        drop(untold);
    }
    // Once its agent runs, the replica serves members with a role.
    let viewers = "kind: RoleBinding\nname: viewers\nrole: viewer\nsubjects: ['fairmesh/operator/web-1.*']\n";
    mesh.apply(viewers).ok();
    let _replica = replica(&mesh, &listen, &absent, &[]);
    let (_agent, address) = agent(&mesh, "web-1", &mesh.address(), None);
    wait_until("the agent joins", || has_certificate(&mesh, "web-1"));
    let listed = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fairmesh"));
        command.args(["get", "services"]).env_clear();
        command.env("FAIRMESH_CONTROL", &listen).env("FAIRMESH_AGENT", &address);
        command.output().unwrap().status.success()
    };
    wait_until("members are served", listed);
}
