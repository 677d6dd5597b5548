//! Tests of applying configuration, its history, and rollback.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use fairmesh_control::HISTORY_KEPT;
use fairmesh_model::{Authorization, AuthorizationRule, CallerMatch, Protocol, Record, RecordKey};
use fairmesh_wire::{
    handshake::Connection,
    record_encoding,
    transport::Address,
    v1::{self, outcome::Kind},
};
use support::{
    TestControl, at_revision, config, delete, number, policy, policy_key, put, read_all, service, service_key,
};
use tonic::{Code, Status};

struct Applied {
    kinds: Vec<Kind>,
    revision: u64,
}

fn applied(response: tonic::Response<v1::ApplyResponse>) -> Applied {
    let response = response.into_inner();
    Applied {
        kinds: response.outcomes.iter().map(|outcome| outcome.kind()).collect(),
        revision: number(&response.revision),
    }
}

async fn apply(connection: &Connection, ops: Vec<v1::Op>) -> Result<Applied, Status> {
    connection
        .admin()
        .apply(v1::ApplyRequest { ops, dry_run: false, ..Default::default() })
        .await
        .map(applied)
}

async fn history(connection: &Connection, kind: &str) -> Result<Vec<v1::Change>, Status> {
    let request = v1::GetHistoryRequest { kind: kind.into(), service: "shop/cart".into() };
    Ok(connection.admin().get_history(request).await?.into_inner().changes)
}

async fn rollback(connection: &Connection, kind: &str, revision: u64) -> Result<Applied, Status> {
    let request = v1::RollbackRequest {
        kind: kind.into(),
        service: "shop/cart".into(),
        revision,
        ..Default::default()
    };
    connection.admin().rollback(request).await.map(applied)
}

/// The current value at a key.
async fn value(connection: &Connection, key: &str) -> Option<Vec<u8>> {
    let entries = read_all(connection).await.entries;
    entries.into_iter().find(|entry| entry.key == key).map(|entry| entry.value.to_vec())
}

#[tokio::test]
async fn apply_reports_outcome_of_each_record_and_writes_only_changes() {
    let folder = tempfile::tempdir().unwrap();
    let control = TestControl::start(config(folder.path().into())).await;
    let connection = control.connect().await;
    let (cart, web) = (service_key("shop/cart"), policy_key("shop/web"));
    let first = || vec![put(&cart, service(Protocol::Grpc)), put(&web, policy(1))];

    let dry = v1::ApplyRequest { ops: first(), dry_run: true, ..Default::default() };
    let dry = applied(connection.admin().apply(dry).await.unwrap());
    assert_eq!((dry.kinds, dry.revision), (vec![Kind::Created, Kind::Created], 0));
    assert!(read_all(&connection).await.entries.is_empty(), "a dry run writes nothing");

    let created = apply(&connection, first()).await.unwrap();
    assert_eq!((created.kinds, created.revision), (vec![Kind::Created, Kind::Created], 1));
    let again = apply(&connection, first()).await.unwrap();
    assert_eq!((again.kinds, again.revision), (vec![Kind::Unchanged, Kind::Unchanged], 1));
    let ops = vec![put(&cart, service(Protocol::Http1)), delete(&web), delete(service_key("shop/never"))];
    let mixed = apply(&connection, ops).await.unwrap();
    assert_eq!((mixed.kinds, mixed.revision), (vec![Kind::Changed, Kind::Deleted, Kind::Unchanged], 2));
    assert_eq!(value(&connection, &cart).await.unwrap(), service(Protocol::Http1));
    assert_eq!(value(&connection, &web).await, None);
    control.stop().await;
}

#[tokio::test]
async fn apply_with_one_invalid_record_is_refused_entirely() {
    let folder = tempfile::tempdir().unwrap();
    let control = TestControl::start(config(folder.path().into())).await;
    let connection = control.connect().await;
    let good = || put(service_key("shop/cart"), service(Protocol::Grpc));
    let wrong = [
        put(policy_key("shop/cart"), b"\xff\xff".to_vec()),
        put("/t/shop/services/Cart", service(Protocol::Grpc)),
        put("/t/shop/endpoints/cart/eu/cart-0", Vec::new()),
        delete("/t/shop/endpoints/cart/eu/cart-0"),
        good(),
    ];
    for op in wrong {
        let refused = apply(&connection, vec![good(), op.clone()]).await.err().unwrap();
        assert_eq!(refused.code(), Code::InvalidArgument, "{op:?}: {refused}");
        assert!(refused.message().contains("ops[1]"), "{refused}");
    }
    assert!(read_all(&connection).await.entries.is_empty());
    control.stop().await;
}

#[tokio::test]
async fn conditional_write_on_old_revision_is_refused_with_both_revisions() {
    let folder = tempfile::tempdir().unwrap();
    let control = TestControl::start(config(folder.path().into())).await;
    let connection = control.connect().await;
    let key = policy_key("shop/cart");
    for seconds in [1, 2] {
        apply(&connection, vec![put(&key, policy(seconds))]).await.unwrap();
    }
    for dry_run in [true, false] {
        let ops = vec![
            put(service_key("shop/cart"), service(Protocol::Grpc)),
            at_revision(put(&key, policy(3)), 1),
        ];
        let refused = connection
            .admin()
            .apply(v1::ApplyRequest { ops, dry_run, ..Default::default() })
            .await
            .unwrap_err();
        assert_eq!(refused.code(), Code::Aborted);
        let text = refused.message();
        assert!(text.contains("revision 1") && text.contains("revision 2"), "{text}");
    }
    assert_eq!(value(&connection, &service_key("shop/cart")).await, None, "all or none");
    apply(&connection, vec![at_revision(put(&key, policy(3)), 2)]).await.unwrap();
    control.stop().await;
}

#[tokio::test]
async fn concurrent_record_changes_are_all_kept_in_history() {
    let folder = tempfile::tempdir().unwrap();
    let control = TestControl::start(config(folder.path().into())).await;
    let key = policy_key("shop/cart");
    let mut writers = tokio::task::JoinSet::new();
    for seconds in 1..=16 {
        let (connection, key) = (control.connect().await, key.clone());
        writers.spawn(async move { apply(&connection, vec![put(key, policy(seconds))]).await });
    }
    let responses = writers.join_all().await;
    let (won, lost): (Vec<_>, Vec<_>) = responses.into_iter().partition(Result::is_ok);
    assert!(lost.iter().all(|response| response.as_ref().is_err_and(|e| e.code() == Code::Aborted)));
    let connection = control.connect().await;
    let changes = history(&connection, "policies").await.unwrap();
    // One entry for each accepted value, and one for the time before the first.
    assert_eq!(changes.len(), won.len() + 1);
    control.stop().await;
}

#[tokio::test]
async fn rollback_restores_earlier_value_as_new_change() {
    let folder = tempfile::tempdir().unwrap();
    let control = TestControl::start(config(folder.path().into())).await;
    let connection = control.connect().await;
    let key = policy_key("shop/cart");
    for seconds in [1, 2, 3] {
        apply(&connection, vec![put(&key, policy(seconds))]).await.unwrap();
    }
    let changes = history(&connection, "policies").await.unwrap();
    let values: Vec<_> = changes.iter().map(|change| change.value.as_deref().map(<[u8]>::to_vec)).collect();
    assert_eq!(values, [Some(policy(3)), Some(policy(2)), Some(policy(1)), None]);
    assert_eq!(changes.iter().map(|change| change.revision).collect::<Vec<_>>(), [3, 2, 1, 0]);
    assert_eq!((changes[0].replaced_at_ms, &*changes[0].replaced_by), (0, ""));
    assert!(changes[1].replaced_at_ms > 0);
    assert_eq!(changes[1].replaced_by, "test (anonymous)");

    let back = rollback(&connection, "policies", 1).await.unwrap();
    assert_eq!((back.kinds, back.revision), (vec![Kind::Changed], 4));
    assert_eq!(value(&connection, &key).await.unwrap(), policy(1));
    rollback(&connection, "policies", 0).await.unwrap();
    assert_eq!(value(&connection, &key).await.unwrap(), policy(3), "0 is the value before the current");
    assert_eq!(history(&connection, "policies").await.unwrap().len(), 6);

    let unknown = rollback(&connection, "policies", 77).await.err().unwrap();
    assert_eq!(unknown.code(), Code::NotFound);
    assert!(unknown.message().contains("choose one of 0, 1, 2, 3, 4"), "{unknown}");
    assert_eq!(rollback(&connection, "services", 0).await.err().unwrap().code(), Code::NotFound);
    assert_eq!(history(&connection, "endpoints").await.unwrap_err().code(), Code::InvalidArgument);
    assert_eq!(history(&connection, "services").await.unwrap_err().code(), Code::NotFound);
    control.stop().await;
}

fn rules(from: &str) -> Vec<u8> {
    let from = vec![CallerMatch::new(from).unwrap()];
    let rules = vec![AuthorizationRule::allowing("web".parse().unwrap(), from)];
    let rules = Authorization { rules, ..Authorization::default() };
    record_encoding::encode(&Record::Authorization(rules)).to_vec()
}

#[tokio::test]
async fn many_changes_of_rules_drop_no_earlier_value_of_policy() {
    let folder = tempfile::tempdir().unwrap();
    let control = TestControl::start(config(folder.path().into())).await;
    let connection = control.connect().await;
    let (key, rules_key) =
        (policy_key("shop/cart"), RecordKey::Authorization("shop/cart".parse().unwrap()).to_string());
    // Rules without a policy: only the time before them is earlier.
    for n in 0..HISTORY_KEPT {
        apply(&connection, vec![put(&rules_key, rules(&format!("shop/a{n}")))]).await.unwrap();
    }
    for seconds in [5, 1] {
        apply(&connection, vec![put(&key, policy(seconds))]).await.unwrap();
        for n in 0..HISTORY_KEPT {
            apply(&connection, vec![put(&rules_key, rules(&format!("shop/b{seconds}{n}")))]).await.unwrap();
        }
    }
    let changes = history(&connection, "policies").await.unwrap();
    let values: Vec<_> = changes.iter().map(|change| change.value.as_deref().map(<[u8]>::to_vec)).collect();
    let default = record_encoding::with_rules(None, Some(&rules("shop/x"))).unwrap();
    let default = record_encoding::with_rules(Some(&default), None).unwrap().to_vec();
    assert_eq!(values, [Some(policy(1)), Some(policy(5)), Some(default), None]);
    let kept = HISTORY_KEPT as u64;
    let revisions: Vec<_> = changes.iter().map(|change| change.revision).collect();
    assert_eq!(revisions, [2 * kept + 2, kept + 1, 1, 0], "of the first writes");
    rollback(&connection, "policies", 0).await.unwrap();
    let restored = value(&connection, &key).await.unwrap();
    assert_eq!(record_encoding::with_rules(Some(&restored), None).unwrap().to_vec(), policy(5));
    control.stop().await;
}

#[tokio::test]
async fn rollback_of_policy_to_earlier_value_skips_changes_of_rules() {
    let folder = tempfile::tempdir().unwrap();
    let control = TestControl::start(config(folder.path().into())).await;
    let connection = control.connect().await;
    let (key, rules_key) =
        (policy_key("shop/cart"), RecordKey::Authorization("shop/cart".parse().unwrap()).to_string());
    apply(&connection, vec![put(&key, policy(5)), put(&rules_key, rules("shop/batch"))]).await.unwrap();
    apply(&connection, vec![put(&key, policy(1))]).await.unwrap();
    apply(&connection, vec![put(&rules_key, rules("shop/web"))]).await.unwrap();
    let changes = history(&connection, "policies").await.unwrap();
    let values: Vec<_> = changes.iter().map(|change| change.value.as_deref().map(<[u8]>::to_vec)).collect();
    assert_eq!(values, [Some(policy(1)), Some(policy(5)), None]);
    assert_eq!(changes.iter().map(|change| change.revision).collect::<Vec<_>>(), [2, 1, 0]);
    assert_eq!(changes[0].stored_revision, 3);

    rollback(&connection, "policies", 0).await.unwrap();
    let restored = record_encoding::with_rules(Some(&policy(5)), Some(&rules("shop/web"))).unwrap();
    assert_eq!(value(&connection, &key).await.unwrap(), restored);
    control.stop().await;
}

#[tokio::test]
async fn rollback_over_creation_deletes_and_over_deletion_restores() {
    let folder = tempfile::tempdir().unwrap();
    let control = TestControl::start(config(folder.path().into())).await;
    let connection = control.connect().await;
    let key = service_key("shop/cart");
    apply(&connection, vec![put(&key, service(Protocol::Grpc))]).await.unwrap();
    assert_eq!(rollback(&connection, "services", 0).await.unwrap().kinds, [Kind::Deleted]);
    assert_eq!(value(&connection, &key).await, None);
    assert_eq!(rollback(&connection, "services", 0).await.unwrap().kinds, [Kind::Created]);
    assert_eq!(value(&connection, &key).await.unwrap(), service(Protocol::Grpc));
    control.stop().await;
}

#[tokio::test]
async fn history_is_bounded_and_survives_restart() {
    let folder = tempfile::tempdir().unwrap();
    let control = TestControl::start(config(folder.path().into())).await;
    let connection = control.connect().await;
    let applies = HISTORY_KEPT as u64 + 9;
    for seconds in 1..=applies {
        apply(&connection, vec![put(policy_key("shop/cart"), policy(seconds))]).await.unwrap();
    }
    let changes = history(&connection, "policies").await.unwrap();
    assert_eq!(changes.len(), HISTORY_KEPT + 1, "the current value and those before it");
    assert_eq!(
        changes.last().unwrap().revision,
        applies - HISTORY_KEPT as u64,
        "the oldest values are dropped"
    );
    assert_eq!(read_all(&connection).await.entries.len(), HISTORY_KEPT + 1);
    control.stop().await;

    let control = TestControl::start(config(folder.path().into())).await;
    assert_eq!(history(&control.connect().await, "policies").await.unwrap(), changes);
    control.stop().await;
}

#[tokio::test]
async fn history_records_user_of_unix_socket() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = config(folder.path().join("data"));
    config.grpc.push(Address::Unix(folder.path().join("control.sock")));
    let control = TestControl::start(config).await;
    let connection = control.connect_at(1).await;
    for seconds in [1, 2] {
        apply(&connection, vec![put(policy_key("shop/cart"), policy(seconds))]).await.unwrap();
    }
    let changes = history(&connection, "policies").await.unwrap();
    assert!(changes[1].replaced_by.starts_with("test (local uid "), "{changes:?}");
    control.stop().await;
}
