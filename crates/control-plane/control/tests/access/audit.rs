//! Tests of the audit log.

use std::fs;

use fairmesh_audit::{AuditEntry, AuditEvent, ChainReader};
use fairmesh_model::{Protocol, access::AccessRole};
use fairmesh_wire::{handshake::Connection, v1};
use tonic::Code;

use super::{
    machines::registration,
    members::{join, own, start_strict},
    roles::{apply, bind, binding},
    support::{delete, policy, policy_key, put, service, service_key},
};

async fn logged(connection: &Connection, activity: bool) -> Vec<AuditEntry> {
    let (mut chain, mut entries) = (ChainReader::default(), Vec::<AuditEntry>::new());
    loop {
        let after = entries.last().map_or(0, |entry| entry.number);
        let page = connection.admin().read_audit(v1::ReadAuditRequest { after, activity }).await;
        let page = page.unwrap().into_inner();
        entries.extend(page.entries.iter().map(|line| chain.read(line).unwrap()));
        if page.last {
            assert_eq!(chain.complete_from(0), Ok(Some(1)));
            return entries;
        }
    }
}

/// The author of a change, and the record's value before and after.
type Logged = (String, Option<Vec<u8>>, Option<Vec<u8>>);

#[tokio::test]
#[allow(clippy::too_many_lines, reason = "one story, from the writes to the log")]
async fn every_write_is_logged_with_caller_and_values_before_and_after() {
    let folder = tempfile::tempdir().unwrap();
    let control = start_strict(folder.path()).await;
    let agent = join(&control, "web-1", &[], "eu").await;
    let alice = agent.issue(&control, "fairmesh/operator/web-1.alice").await.unwrap().connect(&control).await;
    let refused = alice.admin().read_audit(v1::ReadAuditRequest::default()).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
    bind(&control, "alice", binding(AccessRole::Operator, &["shop"], &[], "fairmesh/operator/*")).await;
    let declare = || put(service_key("shop/cart"), service(Protocol::Http1));
    apply(&alice, vec![declare(), put(policy_key("shop/cart"), policy(5))]).await.unwrap();
    apply(&alice, vec![put(policy_key("shop/cart"), policy(6))]).await.unwrap();
    apply(&alice, vec![put(policy_key("shop/cart"), policy(6))]).await.unwrap();
    apply(&alice, vec![delete(policy_key("shop/cart"))]).await.unwrap();
    assert!(apply(&alice, vec![put(service_key("bank/vault"), service(Protocol::Http1))]).await.is_err());
    // The service's name equals the name of a record kind that is not logged.
    apply(&alice, vec![put(service_key("shop/tables"), service(Protocol::Http1))]).await.unwrap();
    for (service, instance) in [("shop/cart", "cart-0"), ("shop/tables", "tables-0")] {
        agent.connect(&control).await.registry().register(registration(service, instance)).await.unwrap();
    }

    let entries = logged(&own(&control).await, false).await;
    let activity = logged(&own(&control).await, true).await;
    let of = |key: &str| -> Vec<Logged> {
        let changes = entries
            .iter()
            .chain(&activity)
            .flat_map(|entry| entry.changes.iter().map(move |change| (entry, change)));
        let changes = changes.filter(|(_, change)| change.key == key);
        let bytes = |value: &Option<fairmesh_audit::AuditValue>| value.as_ref().and_then(|it| it.bytes());
        changes.map(|(entry, it)| (entry.who.clone(), bytes(&it.before), bytes(&it.after))).collect()
    };
    let who = "spiffe://prod/fairmesh/operator/web-1.alice".to_owned();
    let (five, six) = (Some(policy(5)), Some(policy(6)));
    assert_eq!(
        of(&policy_key("shop/cart")),
        [(who.clone(), None, five.clone()), (who.clone(), five, six.clone()), (who.clone(), six, None)]
    );
    assert_eq!(of(&service_key("shop/cart")), [(who.clone(), None, Some(service(Protocol::Http1)))]);
    assert!(of(&service_key("bank/vault")).is_empty());
    let endpoint = of("/t/shop/endpoints/cart/eu/cart-0");
    assert_eq!(endpoint[0].0, "spiffe://prod/fairmesh/agent/web-1", "in a task of its own");
    assert_eq!(of("/t/shop/endpoints/tables/eu/tables-0").len(), 1);
    let roots = of("/g/identity/bundle");
    assert_eq!(roots[0].0, "control plane for controller trust-bundle");
    assert!(of("/g/roles/alice")[0].0.starts_with("local uid"));
    let events = |entries: &[AuditEntry]| -> Vec<_> {
        entries.iter().filter_map(|entry| Some((entry.who.clone(), entry.event.clone()?))).collect()
    };
    let token = AuditEvent::Token { joins: "web-1".into() };
    assert!(events(&entries).iter().any(|(who, event)| who.starts_with("local uid") && *event == token));
    let noted = events(&activity);
    let denied = |method: &str| {
        let is_denial =
            |event: &AuditEvent| matches!(event, AuditEvent::Denied { method: of, .. } if of == method);
        noted.iter().any(|(by, event)| *by == who && is_denial(event))
    };
    assert!(denied("/fairmesh.v1.Admin/ReadAudit") && denied("/fairmesh.v1.Admin/Apply"), "{noted:?}");
    let issued = AuditEvent::Certificate { identity: who.clone() };
    assert!(noted.iter().any(|(_, event)| *event == issued), "{noted:?}");
    let read = |(by, event): &(String, AuditEvent)| by.starts_with("local uid") && event.kind() == "read";
    assert_eq!(noted.iter().filter(|one| read(one)).count(), 2, "one of each log: {noted:?}");
    assert!(entries.iter().all(|entry| entry.changes.iter().all(|it| !it.key.contains("/endpoints/"))));
    control.stop().await;

    // The chain continues after a restart, and reveals changes.
    let control = start_strict(folder.path()).await;
    apply(&own(&control).await, vec![put(policy_key("shop/cart"), policy(7))]).await.unwrap();
    let after = logged(&own(&control).await, false).await;
    assert_eq!(after[..entries.len()], entries);
    assert!(after.len() > entries.len());
    control.stop().await;
    let path = folder.path().join("audit.log");
    let text = fs::read_to_string(&path).unwrap();
    let altered = text.replacen("web-1.alice", "web-1.mallory", 1);
    let broken =
        altered.lines().try_fold(ChainReader::default(), |mut chain, line| chain.read(line).map(|_| chain));
    assert!(broken.is_err());
}
