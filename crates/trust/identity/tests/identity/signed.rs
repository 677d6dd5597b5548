//! Tests of signed messages that untrusted processes forward.

use fairmesh_identity::{
    Refused, Trust,
    signed_message::{self, Purpose},
};

use crate::support::*;

#[test]
fn altered_signed_message_is_refused() {
    let ca = Ca::default();
    let agent = ca.credentials("fairmesh/agent/web-1", now());
    let trust = Trust::new(ca.authority.bundle()).unwrap();
    let message = signed_message::sign(&agent, Purpose::IssueRequest, b"bound", b"payload".to_vec()).unwrap();
    let verify =
        |purpose, bound: &[u8], message: &_| signed_message::verify(&trust, purpose, bound, message, now());
    assert_eq!(verify(Purpose::IssueRequest, b"bound", &message).unwrap(), id("fairmesh/agent/web-1"));
    assert_eq!(verify(Purpose::IssueResponse, b"bound", &message), Err(Refused::BadSignature));
    assert_eq!(verify(Purpose::IssueRequest, b"boun", &message), Err(Refused::BadSignature));
    let mut other = message.clone();
    other.payload = b"pay".to_vec().into();
    assert_eq!(verify(Purpose::IssueRequest, b"bound", &other), Err(Refused::BadSignature));
    // The same signature with another process's certificate.
    let chain =
        ca.credentials("fairmesh/agent/web-2", now()).chain().iter().map(|c| c.to_vec().into()).collect();
    let other = fairmesh_wire::v1::SignedMessage { chain, ..message.clone() };
    assert_eq!(verify(Purpose::IssueRequest, b"bound", &other), Err(Refused::BadSignature));
    let other = fairmesh_wire::v1::SignedMessage { chain: Vec::new(), ..message };
    assert_eq!(verify(Purpose::IssueRequest, b"bound", &other), Err(Refused::ChainLength(0)));
}

#[test]
fn message_signed_in_other_trust_domain_or_outside_validity_is_refused() {
    let (ca, other) = (Ca::default(), Ca::default());
    let trust = Trust::new(ca.authority.bundle()).unwrap();
    let verify = |message: &_, now| signed_message::verify(&trust, Purpose::IssueRequest, b"", message, now);
    let sign = |ca: &Ca| {
        let agent = ca.credentials("fairmesh/agent/web-1", now());
        signed_message::sign(&agent, Purpose::IssueRequest, b"", Vec::new()).unwrap()
    };
    assert!(matches!(verify(&sign(&other), now()), Err(Refused::UnknownIssuer(_))));
    assert_eq!(verify(&sign(&ca), now() + 25 * HOUR), Err(Refused::Expired));
    verify(&sign(&ca), now() + 23 * HOUR).unwrap();
}
