//! Rotates the authority's keys while thousands of connections are open.

use std::{io, net::Ipv4Addr, sync::Arc};

use fairmesh_identity::Workload;
use fairmesh_model::ServiceName;
use fairmesh_test_support::is_soak;
use fairmesh_wire::transport::{ExpectedPeer, SecureStream, TlsIdentity as _};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpSocket},
    task::JoinSet,
};

use crate::support::*;

/// Address that only this test uses: it needs most ports there, which parallel tests would lack.
const ADDRESS: Ipv4Addr = Ipv4Addr::new(127, 31, 0, 1);
/// Number of concurrent handshakes.
const AT_ONCE: usize = 64;

type Ends = (Box<dyn SecureStream>, Box<dyn SecureStream>);

/// Returns the number of connections that the descriptor limit allows, with a reserve for other descriptors.
fn many() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    let most = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    (most.saturating_sub(500) / 2).min(if is_soak() { 10_000 } else { 2_000 })
}

async fn open(caller: &Workload, server: &Workload) -> io::Result<Ends> {
    let listener = TcpListener::bind((ADDRESS, 0)).await?;
    let address = listener.local_addr()?;
    let service = ServiceName::new("shop/cart").unwrap();
    let dial = async {
        let socket = TcpSocket::new_v4()?;
        socket.bind((ADDRESS, 0).into())?;
        caller.connect(ExpectedPeer::Service(&service), socket.connect(address).await?).await
    };
    let accept = async { server.accept(listener.accept().await?.0).await };
    let (dialled, accepted) = tokio::join!(dial, accept);
    Ok((dialled?, accepted?))
}

/// Sends a byte and receives it back.
async fn exchange((dialled, accepted): &mut Ends) -> io::Result<()> {
    dialled.write_all(b"?").await?;
    dialled.flush().await?;
    accepted.read_u8().await?;
    accepted.write_all(b"!").await?;
    accepted.flush().await?;
    dialled.read_u8().await.map(drop)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn root_rotation_ends_no_open_connection() {
    let ca = Ca::default();
    let (cart, web) = (ca.workload("shop/cart"), ca.workload("shop/web"));
    let many = usize::try_from(many()).unwrap();
    let (mut opening, mut all) = (JoinSet::new(), Vec::with_capacity(many));
    while all.len() < many {
        while opening.len() < AT_ONCE.min(many - all.len()) {
            let (cart, web) = (Arc::clone(&cart), Arc::clone(&web));
            opening.spawn(async move { open(&web, &cart).await });
        }
        all.push(opening.join_next().await.unwrap().unwrap().unwrap());
    }
    let renew = || {
        for (workload, path) in [(&cart, "shop/cart"), (&web, "shop/web")] {
            workload.install(ca.credentials(path, now())).unwrap();
        }
    };
    // First the new root is published, then it signs a new intermediate, then that intermediate signs certificates.
    ca.authority.begin_root(now()).unwrap();
    for rotation in 0..3 {
        if rotation > 0 {
            ca.authority.rotate_issuer(now()).unwrap();
        }
        // One side gets its new certificate before the other side.
        cart.install(ca.credentials("shop/cart", now())).unwrap();
        exchange(&mut open(&web, &cart).await.unwrap()).await.unwrap();
        renew();
        exchange(&mut open(&web, &cart).await.unwrap()).await.unwrap();
        for ends in &mut all {
            exchange(ends).await.unwrap();
        }
    }
    assert!(all.len() > 100, "only {} connections could be opened", all.len());
}
