//! Tests of a control plane with a record that cannot be read: it gives nobody more for that.

use std::path::Path;

use bytes::Bytes;
use fairmesh_model::RecordKey;
use fairmesh_rib::{Batch, Op};
use fairmesh_store::{RedbStore, Store as _};
use tonic::Code;

use super::{
    members::{join, start_strict},
    support::named,
};

/// Replaces a record in the store of a stopped control plane.
async fn damage(folder: &Path, key: &RecordKey) {
    let store = RedbStore::open(folder.join("rib.redb")).unwrap();
    let ops = vec![Op::put(key.to_string(), Bytes::from_static(&[0xff]))];
    store.write(Batch { ops }).await.unwrap();
    store.close().await;
}

#[tokio::test]
async fn no_jwt_svid_is_issued_while_revocations_are_unreadable() {
    let folder = tempfile::tempdir().unwrap();
    let control = start_strict(folder.path()).await;
    let agent = join(&control, "web-1", &[], "eu").await;
    assert!(!agent.issue_jwt(&control, "shop/web").await.unwrap().is_empty());
    control.stop().await;
    damage(folder.path(), &RecordKey::Revocations).await;

    let control = start_strict(folder.path()).await;
    let refused = agent.issue_jwt(&control, "shop/web").await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    assert!(refused.message().contains("--replace-unreadable"), "{refused}");
    control.stop().await;
}

#[tokio::test]
async fn no_agent_vouches_for_service_whose_workload_is_unreadable() {
    let folder = tempfile::tempdir().unwrap();
    let control = start_strict(folder.path()).await;
    let agent = join(&control, "web-1", &[], "eu").await;
    control.stop().await;
    damage(folder.path(), &RecordKey::Workload(named("shop/web"))).await;

    let control = start_strict(folder.path()).await;
    // The record may name other agents.
    let certificate = agent.issue(&control, "shop/web").await.map(drop);
    for refused in [certificate, agent.issue_jwt(&control, "shop/web").await.map(drop)] {
        let refused = refused.unwrap_err();
        assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
        assert!(refused.message().contains("the workload of shop/web cannot be read"), "{refused}");
    }
    agent.issue(&control, "shop/cart").await.unwrap();
    control.stop().await;
}
