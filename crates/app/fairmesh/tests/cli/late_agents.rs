//! Programs that start while the agent of their machine is too busy to answer.

use std::{process::Command, thread, time::Duration};

use fairmesh_calls::forwarding::transport;

use super::{
    identities::{agent, domain, has_certificate, over_tcp, runtime},
    support::{send, wait_until},
};

/// Time for which the agent does not answer. Longer than the time limit of one handshake with it.
const STALL: Duration = Duration::from_secs(4);

#[test]
fn library_program_has_identity_when_agent_answers_after_its_handshake_limit() {
    let (mesh, _) = domain();
    let (busy, agent) = agent(&mesh, "web-1", &mesh.address(), None);
    wait_until("the agent joins", || has_certificate(&mesh, "web-1"));
    send(&busy.0, "STOP");
    let pid = busy.0.id().to_string();
    let stalled = thread::spawn(move || {
        thread::sleep(STALL);
        assert!(Command::new("kill").args(["-CONT", &pid]).status().unwrap().success());
    });
    let id = runtime().block_on(async {
        let program = fairmesh_client::Mesh::builder().agent(agent.parse().unwrap());
        let program = program.identity("shop/web".parse().unwrap()).connect().await.unwrap();
        transport(&program).id()
    });
    stalled.join().unwrap();
    assert_eq!(id.map(|id| id.to_string()).as_deref(), Some("spiffe://prod/shop/web"));
}

#[test]
fn whoami_names_command_that_continues_stopped_agent() {
    let (mesh, tcp) = domain();
    let (stopped, agent) = agent(&mesh, "web-1", &mesh.address(), None);
    wait_until("the agent joins", || has_certificate(&mesh, "web-1"));
    send(&stopped.0, "STOP");
    let complaint = over_tcp(&tcp, &agent, &["identity", "whoami"]).fails(1);
    assert!(complaint.contains("has not responded yet"), "{complaint}");
    assert!(complaint.contains(&format!("'kill -CONT {}'", stopped.0.id())), "{complaint}");
    send(&stopped.0, "CONT");
    wait_until("the agent answers", || over_tcp(&tcp, &agent, &["identity", "whoami"]).code == Some(0));
}
