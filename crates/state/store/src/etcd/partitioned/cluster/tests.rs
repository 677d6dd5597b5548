use fairmesh_test_support::Etcd;
use tokio::time::{Instant, timeout};

use super::{
    super::{
        super::{EtcdConfig, key_layout::Layout},
        open::RetryUntil,
    },
    *,
};

#[path = "../../../../tests/support/proxy.rs"]
mod proxy;

/// A partition in an etcd behind a proxy that can cut the connection. It has this process's fence.
async fn partition_behind_proxy(server: &Etcd) -> (Cluster, proxy::Proxy) {
    let proxy = proxy::Proxy::to(server.client()).await;
    let address = format!("etcd://{}", proxy.address).parse().unwrap();
    let config = EtcdConfig { address, tls: None, login: None };
    let (client, layout) = (Client::new(&config).unwrap(), Layout::for_partition("/x"));
    let (identity, fence) = (Bytes::from_static(b"identity"), Bytes::copy_from_slice(&7_u64.to_be_bytes()));
    let puts = vec![
        conditional_write::put(layout.identity_key(), identity.clone()),
        conditional_write::put(layout.meta_key("fence"), fence),
    ];
    client.txn(RetryPolicy::Repeatable, TxnRequest { success: puts, ..TxnRequest::default() }).await.unwrap();
    (Cluster::new((client, layout), identity, Fence::Stamped(7), &HashMap::new()), proxy)
}

#[tokio::test]
async fn etcd_commit_is_recognised_after_lost_response() {
    let server = Etcd::start();
    let (cluster, proxy) = partition_behind_proxy(&server).await;
    let commit = async |value: &'static str| {
        let key = cluster.layout.meta_key("what");
        let change = ConditionalWrite::raw(vec![(key, Some(Bytes::from_static(value.as_bytes())))]);
        cluster.commit_copy(&change, &mut RetryUntil(Instant::now())).await
    };
    assert_eq!(commit("first").await.unwrap(), CommitOutcome::Written);
    proxy.set(proxy::Link::Mute);
    let cut_once_there = async {
        // "/x/meta/what"
        while !server.post("kv/range", r#"{"key":"L3gvbWV0YS93aGF0"}"#).contains("c2Vjb25k") {
            tokio::task::yield_now().await;
        }
        proxy.set(proxy::Link::Cut);
    };
    let retry = std::time::Duration::from_secs(30);
    let both = async { tokio::join!(commit("second"), cut_once_there).0 };
    let lost = timeout(retry, both).await.unwrap();
    assert!(matches!(lost, Err(CallError::Unknown(_))), "{lost:?}");
    proxy.set(proxy::Link::Open);
    assert_eq!(commit("third").await.unwrap(), CommitOutcome::Written);
    assert_eq!(cluster.read_meta_value("what").await.unwrap().as_deref(), Some(&b"third"[..]));
}
