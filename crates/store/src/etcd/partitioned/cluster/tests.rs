use tokio::time::{Instant, timeout};

use super::{
    super::{
        super::{EtcdConfig, layout::Layout},
        open::Until,
    },
    *,
};

#[allow(dead_code, reason = "other tests use the rest")]
#[path = "../../../../tests/support/etcd.rs"]
mod etcd;
#[path = "../../../../tests/support/proxy.rs"]
mod proxy;

/// A part in an etcd behind a way that can be cut, in the hands of this process.
async fn part(server: &etcd::Etcd) -> (Cluster, proxy::Proxy) {
    let way = proxy::Proxy::to(server.client()).await;
    let address = format!("etcd://{}", way.address).parse().unwrap();
    let config = EtcdConfig { address, tls: None, login: None };
    let (client, layout) = (Client::new(&config).unwrap(), Layout::of_part("/x"));
    let (mark, turn) = (Bytes::from_static(b"mark"), Bytes::copy_from_slice(&7_u64.to_be_bytes()));
    let puts = vec![change::put(layout.store(), mark.clone()), change::put(layout.meta("turn"), turn)];
    client.txn(Again::Always, TxnRequest { success: puts, ..TxnRequest::default() }).await.unwrap();
    (Cluster::new((client, layout), mark, Fence::Turn(7), &HashMap::new()), way)
}

#[tokio::test]
async fn a_change_after_one_that_was_carried_out_and_never_answered_is_not_taken_for_it() {
    let server = etcd::Etcd::start();
    let (cluster, way) = part(&server).await;
    let carry = async |value: &'static str| {
        let key = cluster.layout.meta("what");
        let change = Change::raw(vec![(key, Some(Bytes::from_static(value.as_bytes())))]);
        cluster.carry(&change, &mut Until(Instant::now())).await
    };
    assert_eq!(carry("first").await.unwrap(), Verdict::Written);
    way.set(proxy::Way::Mute);
    let cut_once_there = async {
        // "/x/meta/what"
        while !server.post("kv/range", r#"{"key":"L3gvbWV0YS93aGF0"}"#).contains("c2Vjb25k") {
            tokio::task::yield_now().await;
        }
        way.set(proxy::Way::Cut);
    };
    let patience = std::time::Duration::from_secs(30);
    let both = async { tokio::join!(carry("second"), cut_once_there).0 };
    let lost = timeout(patience, both).await.unwrap();
    assert!(matches!(lost, Err(Failure::Unknown(_))), "{lost:?}");
    way.set(proxy::Way::Open);
    assert_eq!(carry("third").await.unwrap(), Verdict::Written);
    assert_eq!(cluster.value("what").await.unwrap().as_deref(), Some(&b"third"[..]));
}
