//! Tests of revocations: in handshakes, and on open connections.

use fairmesh_identity::Refused;
use fairmesh_model::{Identity, Revocation, Revocations, RevokedCertificates};
use fairmesh_wire::transport::Transport;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::support::*;

fn revocations(path: &str, certificates: RevokedCertificates) -> Revocations {
    Revocations { entries: vec![Revocation { path: path.parse().unwrap(), certificates, at: 0 }] }
}

#[tokio::test]
async fn revocation_ends_only_connections_of_revoked_peer() {
    let ca = Ca::default();
    let (control, kept) = (ca.workload("fairmesh/control/one"), ca.transport("fairmesh/agent/web-2"));
    let (agent, server) = (ca.transport("fairmesh/agent/web-1"), Transport::tls(control.clone()));
    let (dialled, accepted) = connect(&agent, &server).await;
    let (mut dialled, mut accepted) = (dialled.unwrap(), accepted.unwrap());
    let (other, others_end) = connect(&kept, &server).await;
    let (mut other, mut others_end) = (other.unwrap(), others_end.unwrap());
    let reading = tokio::spawn(async move { (accepted.read_u8().await, accepted) });
    tokio::task::yield_now().await;
    control.revoke(revocations("fairmesh/agent/web-1", RevokedCertificates::All));
    let (read, accepted) = soon(reading).await.unwrap();
    let error = read.unwrap_err().to_string();
    assert!(error.contains("fairmesh/agent/web-1 is revoked"), "{error}");
    drop(accepted);
    assert!(soon(dialled.read_u8()).await.is_err(), "it is closed for the peer too");
    other.write_all(b"x").await.unwrap();
    other.flush().await.unwrap();
    assert_eq!(soon(others_end.read_u8()).await.unwrap(), b'x');
}

#[tokio::test]
async fn revoked_peer_is_refused_as_client_and_server_until_restored() {
    let ca = Ca::default();
    let (agent, control) = (ca.workload("fairmesh/agent/web-1"), ca.workload("fairmesh/control/one"));
    let transports = [&agent, &control].map(|one| Transport::tls(one.clone()));
    // Leaves resumable sessions behind.
    let (mut dialled, accepted) = {
        let (dialled, accepted) = connect(&transports[0], &transports[1]).await;
        (dialled.unwrap(), accepted.unwrap())
    };
    let mut accepted = accepted;
    accepted.write_all(b"x").await.unwrap();
    accepted.flush().await.unwrap();
    soon(dialled.read_u8()).await.unwrap();
    for (verifier, refused) in [(&control, "fairmesh/agent/web-1"), (&agent, "fairmesh/control/one")] {
        verifier.revoke(revocations(refused, RevokedCertificates::All));
        let (dialled, accepted) = connect(&transports[0], &transports[1]).await;
        let error = if refused.contains("agent") { accepted.unwrap_err() } else { dialled.unwrap_err() };
        assert!(error.to_string().contains(&format!("{refused} is revoked")), "{error}");
        verifier.revoke(Revocations::default());
        let (dialled, accepted) = connect(&transports[0], &transports[1]).await;
        dialled.unwrap();
        assert_eq!(accepted.unwrap().identity(), &Identity::Spiffe(id("fairmesh/agent/web-1")));
    }
}

#[tokio::test]
async fn certificate_is_revocable_by_serial_or_issue_time() {
    let ca = Ca::default();
    let (first, control) = (ca.workload("fairmesh/agent/web-1"), ca.workload("fairmesh/control/one"));
    let server = Transport::tls(control.clone());
    let chain = first.credentials().unwrap();
    let info = fairmesh_identity::CertificateInfo::of(&chain.chain()[0]).unwrap();
    let digits = |at: usize| u8::from_str_radix(&info.serial[at..at + 2], 16).unwrap();
    let serial = (0..info.serial.len()).step_by(2).map(digits).collect();
    control.revoke(revocations("fairmesh/agent/web-1", RevokedCertificates::Serial(serial)));
    connect(&Transport::tls(first.clone()), &server).await.1.unwrap_err();
    connect(&ca.transport("fairmesh/agent/web-1"), &server).await.1.unwrap();
    let later = now().as_secs() + 10;
    control.revoke(revocations("fairmesh/agent/web-1", RevokedCertificates::IssuedBefore(later)));
    connect(&Transport::tls(first.clone()), &server).await.1.unwrap_err();
    control.revoke(revocations("fairmesh/agent/web-1", RevokedCertificates::IssuedBefore(1)));
    connect(&Transport::tls(first.clone()), &server).await.1.unwrap();
    assert!(!first.is_revoked());
    first.revoke(revocations("fairmesh/agent/web-1", RevokedCertificates::All));
    assert!(first.is_revoked());
}

#[tokio::test]
async fn process_without_readable_revocations_accepts_only_those_that_pass_records_on() {
    let ca = Ca::default();
    let (control, web) = (ca.workload("fairmesh/control/one"), ca.transport("shop/web"));
    let (agent, server) = (ca.transport("fairmesh/agent/web-1"), Transport::tls(control.clone()));
    let (dialled, accepted) = connect(&web, &server).await;
    let (_dialled, mut open) = (dialled.unwrap(), accepted.unwrap());
    assert!(control.revocations_unreadable(), "no earlier revocations are known");
    let error = soon(open.read_u8()).await.unwrap_err().to_string();
    assert!(error.contains("the record of revocations cannot be read"), "{error}");
    let error = connect(&web, &server).await.1.unwrap_err().to_string();
    assert!(error.contains("the certificate of shop/web may be revoked"), "{error}");
    let repair = "`fairmesh identity revoke ID --replace-unreadable --control unix:DIR/control.sock`";
    assert!(error.contains(repair), "{error}");
    for refused in
        ["operator/web-1.uid-1000", "gateway/web-1.edge", "proxy/web-1.web", "keyserver/web-1.keys"]
    {
        let path = format!("fairmesh/{refused}");
        let error = connect(&ca.transport(&path), &server).await.1.unwrap_err().to_string();
        assert!(error.contains(&format!("the certificate of {path} may be revoked")), "{error}");
    }
    for accepted in ["fairmesh/control/two", "fairmesh/replica/web-1.eu"] {
        connect(&ca.transport(accepted), &server).await.1.expect(accepted);
    }
    connect(&agent, &server).await.1.unwrap();
    assert!(!control.is_revoked(), "its own certificate stays in use");
    let token = |path: &str| control.revocations().check_token(&path.parse().unwrap(), now().as_secs());
    assert!(matches!(token("shop/web"), Err(Refused::RevocationsUnreadable(_))), "tokens are refused too");
    token("fairmesh/agent/web-1").unwrap();
    // Once a record was read, a later one that cannot be read changes nothing.
    control.revoke(Revocations::default());
    connect(&web, &server).await.1.unwrap();
    assert!(!control.revocations_unreadable());
    connect(&web, &server).await.1.unwrap();
}
