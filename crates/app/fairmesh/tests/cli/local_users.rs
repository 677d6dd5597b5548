//! Actions of an agent in its own name for local programs: attacks by local users over the agent's socket, and honest
//! use beside them.

mod positions;

use std::{fs::Permissions, os::unix::fs::PermissionsExt as _, thread};

use fairmesh_test_support::{free_port, skipped};
use fairmesh_wire::{
    handshake::{self, Connection},
    v1,
};
use rustix::thread::{Gid, Uid, set_thread_gid, set_thread_groups, set_thread_uid};
use serde_json::Value;
use tonic::{Code, Status};

use super::{
    calls::echo,
    identities::{Killed, agent, domain, has_certificate, runtime, start},
    support::{Mesh, fairmesh, wait_until},
};

/// User ids that no machine has.
const STRANGER: u32 = 54_011;
const NEIGHBOUR: u32 = 54_012;
const VAULT: u32 = 54_013;

/// A mesh with an agent, in which `blue/vault` runs as the agent's user.
struct Machine {
    mesh: Mesh,
    agent: String,
    vault: String,
    _processes: [Killed; 2],
}

impl Machine {
    /// `None` if programs cannot run as other users here.
    fn start() -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            skipped("programs cannot be run as another user", "this is not root");
            return None;
        }
        let (mesh, _) = domain();
        std::fs::set_permissions(mesh.path("."), Permissions::from_mode(0o755)).unwrap();
        mesh.apply(DOCUMENTS).ok();
        let (process, agent) = agent(&mesh, "web-1", &mesh.address(), None);
        wait_until("the agent joins", || has_certificate(&mesh, "web-1"));
        let [listen, program] = [free_port(), echo()].map(|port| format!("127.0.0.1:{port}"));
        let register =
            ["register", "blue/vault", "--agent", &agent, "--address", &listen, "--program", &program];
        let processes = [process, start(&register, None)];
        let mut this = Self { mesh, agent, vault: String::new(), _processes: processes };
        wait_until("the service is called", || this.is_called());
        this.vault = this.endpoints()[0]["instance"].as_str().unwrap().to_owned();
        Some(this)
    }

    fn is_called(&self) -> bool {
        self.mesh.run(&["call", "blue/vault", "/", "--agent", &self.agent, "--as", "blue/web"]).code
            == Some(0)
    }

    fn endpoints(&self) -> Value {
        self.mesh.run(&["get", "endpoints", "blue/vault", "--json"]).json()
    }

    /// Runs `work` with a connection to the agent that was opened as this user; returns its result.
    fn as_user<T: Send>(&self, uid: u32, work: impl AsyncFnOnce(Connection) -> T + Send) -> T {
        let address = self.agent.parse().unwrap();
        let connect_and_work = || {
            if uid != 0 {
                // Changes this thread only, which the kernel reports as the peer of its connections.
                set_thread_groups(&[]).unwrap();
                set_thread_gid(Gid::from_raw(uid)).unwrap();
                set_thread_uid(Uid::from_raw(uid)).unwrap();
            }
            runtime().block_on(async {
                let connection = handshake::connect(&Default::default(), &address, "test").await.unwrap();
                work(connection).await
            })
        };
        thread::scope(|scope| scope.spawn(connect_and_work).join().unwrap())
    }
}

/// Two tenants with a program each, and a mesh-wide limit.
const DOCUMENTS: &str = "\
kind: Service
name: blue/vault
---
kind: Service
name: red/web
---
kind: Policy
service: blue/vault
authorization:
  rules: [{name: callers, from: [blue/web, blue/vault]}]
---
kind: Workload
service: red/web
programs: [{uid: 54012}]
---
kind: Workload
service: blue/vault
programs: [{uid: 54013}]
";

fn instance(service: &str, instance: &str) -> v1::InstanceRef {
    v1::InstanceRef { service: service.into(), instance: instance.into(), incarnation: 0 }
}

fn registration(service: &str, instance: &str) -> v1::RegisterRequest {
    let endpoint = v1::Endpoint {
        instance: instance.into(),
        address: "127.0.0.1:1".into(),
        location: Some(v1::Location { region: "eu".into(), ..Default::default() }),
        state: v1::endpoint::State::Starting.into(),
        mtls: true,
        ..Default::default()
    };
    let one = v1::Registration { service: service.into(), endpoint: Some(endpoint), declaration: None };
    v1::RegisterRequest { registrations: vec![one] }
}

fn drain(name: &str, by_operator: bool) -> v1::DrainRequest {
    v1::DrainRequest { instances: vec![instance("blue/vault", name)], deadline_ms: 1, by_operator }
}

/// Attacks a service of others, as a user without a record.
async fn attack(connection: Connection, vault: &str) -> Vec<(&'static str, Result<(), Status>)> {
    let (mut registry, mut quota) = (connection.registry(), connection.quota());
    let gone = v1::DeregisterRequest { instances: vec![instance("blue/vault", vault)], only_lost: false };
    let demand = v1::Demand { service: "blue/vault".into(), ..Default::default() };
    vec![
        ("register", registry.register(registration("blue/vault", "intruder")).await.map(drop)),
        ("drain", registry.drain(drain(vault, false)).await.map(drop)),
        ("drain by an operator", registry.drain(drain(vault, true)).await.map(drop)),
        ("deregister", registry.deregister(gone).await.map(drop)),
        ("claim", quota.claim(v1::ClaimRequest { caller: 1, demands: vec![demand] }).await.map(drop)),
    ]
}

#[test]
fn local_user_without_record_changes_nothing_through_agent() {
    let Some(machine) = Machine::start() else { return };
    for user in [STRANGER, NEIGHBOUR] {
        let attacked = machine.as_user(user, async |connection| attack(connection, &machine.vault).await);
        for (what, result) in attacked {
            let refused = result.expect_err(what);
            assert_eq!(refused.code(), Code::PermissionDenied, "{user}, {what}: {refused}");
        }
        let endpoints = machine.endpoints();
        let [endpoint] = &endpoints.as_array().unwrap()[..] else { panic!("{endpoints}") };
        assert_eq!(
            (&endpoint["instance"], &endpoint["state"]),
            (&machine.vault.as_str().into(), &"serving".into())
        );
        assert!(machine.is_called());
    }
    // A record permits this for the named service only, until the record is deleted.
    let register = async |connection: Connection| {
        connection.registry().register(registration("red/web", "web-0")).await.map(drop)
    };
    machine.as_user(NEIGHBOUR, register).unwrap();
    machine.mesh.run(&["identity", "revoke", "red/web"]).ok();
    wait_until("a revoked identity acts no more", || machine.as_user(NEIGHBOUR, register).is_err());
}

#[test]
fn operator_drains_through_agent_only_by_own_role() {
    let Some(machine) = Machine::start() else { return };
    let drain = |command: &str| {
        let instance = format!("blue/vault/{}", machine.vault);
        fairmesh(&machine.agent, &[command, &instance], "")
    };
    let refused = drain("drain").fails(1);
    assert!(refused.contains("fairmesh/operator/web-1.uid-0"), "{refused}");
    let unstated = machine.as_user(0, async |connection| {
        connection.registry().drain(self::drain(&machine.vault, true)).await.unwrap_err()
    });
    assert!(unstated.message().contains("an agent makes no call of an operator"), "{unstated}");
    let role = "role: operator\ntenants: [blue]\nsubjects: [fairmesh/operator/web-1.uid-0]\n";
    machine.mesh.apply(&format!("kind: RoleBinding\nname: ops\n{role}")).ok();
    drain("drain").ok();
    assert_eq!(machine.endpoints()[0]["state"], "draining");
    drain("undrain").ok();
    assert_eq!(machine.endpoints()[0]["state"], "serving");
}

#[test]
fn program_learns_only_of_watched_services_that_it_is_or_may_call() {
    let Some(machine) = Machine::start() else { return };
    let watched = async |connection: Connection| {
        let sender = v1::SignalSender { reporter: 1, interval_ms: 1_000, regions: Vec::new() };
        let report = v1::ReportSignalsRequest { sender: Some(sender), ..Default::default() };
        connection.signals().report(report).await.map(|response| response.into_inner().watched)
    };
    wait_until("the service learns that an operator looks at it", || {
        machine.mesh.run(&["traffic", "calls", "blue/vault"]).ok();
        machine.as_user(VAULT, watched).unwrap() == ["blue/vault"]
    });
    assert_eq!(machine.as_user(0, watched).unwrap(), ["blue/vault"]);
    assert!(machine.as_user(NEIGHBOUR, watched).unwrap().is_empty());
    assert_eq!(machine.as_user(STRANGER, watched).unwrap_err().code(), Code::PermissionDenied);
}
