//! Tests of a control plane whose record of revocations cannot be read.

use bytes::Bytes;
use fairmesh_model::RecordKey;
use fairmesh_rib::{Batch, Op};
use fairmesh_store::{RedbStore, Store as _};
use tonic::Code;

use super::members::{join, start_strict};

#[tokio::test]
async fn no_jwt_svid_is_issued_while_revocations_are_unreadable() {
    let folder = tempfile::tempdir().unwrap();
    let control = start_strict(folder.path()).await;
    let agent = join(&control, "web-1", &[], "eu").await;
    assert!(!agent.issue_jwt(&control, "shop/web").await.unwrap().is_empty());
    control.stop().await;
    let store = RedbStore::open(folder.path().join("rib.redb")).unwrap();
    let ops = vec![Op::put(RecordKey::Revocations.to_string(), Bytes::from_static(&[0xff]))];
    store.write(Batch { ops }).await.unwrap();
    store.close().await;

    let control = start_strict(folder.path()).await;
    let refused = agent.issue_jwt(&control, "shop/web").await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    assert!(refused.message().contains("--replace-unreadable"), "{refused}");
    control.stop().await;
}
