//! One service of a chain, which calls the next one before it responds. Each service is a process of its own.

use std::{
    net::Ipv4Addr,
    sync::{Arc, OnceLock},
};

use tokio::net::TcpListener;

use super::{BoxError, load_by, minimal_peers::http1, orders};
use crate::load_generator::Call as _;

/// Callers of the next service, one per way (such as direct or through the sidecar); unset at the end of the chain.
type Ways = Arc<OnceLock<Vec<http1::Caller>>>;

/// Prints its address, and serves until its input ends. `next HOST PAYLOAD ADDRESS,…` sets the address of the next
/// service on each way. `closed WAY MS TASKS` and `open WAY MS RATE` let it call the next service, and so the rest of
/// the chain, on one of the ways.
pub(super) async fn run(cgroup: &str) -> Result<(), BoxError> {
    fairmesh_kernel::enter_cgroup(cgroup)?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    println!("{}", listener.local_addr()?);
    let ways = Ways::default();
    let next = Arc::clone(&ways);
    let serving = tokio::spawn(http1::serve_after(listener, move |head| {
        let (next, way) = (Arc::clone(&next), way_of(head));
        async move { call_next(&next, way).await }
    }));
    tokio::select! {
        ended = serving => Err(format!("the service ended: {:?}", ended?).into()),
        done = execute_orders(&ways) => done,
    }
}

/// The number in the path of a request; every request is `POST /N`.
fn way_of(head: &[u8]) -> usize {
    let digit = head.get(b"POST /".len()).copied().unwrap_or_default();
    usize::from(digit.wrapping_sub(b'0'))
}

async fn call_next(ways: &Ways, way: usize) -> Result<(), BoxError> {
    match ways.get().and_then(|ways| ways.get(way)) {
        Some(caller) => Ok(caller.call().await?),
        None => Ok(()),
    }
}

async fn execute_orders(ways: &Ways) -> Result<(), BoxError> {
    let mut orders = orders();
    while let Some(order) = orders.next_line().await? {
        let words: Vec<&str> = order.split(' ').collect();
        let done = match words[..] {
            ["next", host, payload, addresses] => {
                let payload = payload.parse()?;
                let caller = |(way, to): (usize, &str)| {
                    let path = format!("/{way}");
                    Ok::<_, BoxError>(http1::Caller::at(to.parse()?, (host, &path), payload))
                };
                let made = addresses.split(',').enumerate().map(caller).collect::<Result<_, _>>()?;
                match ways.set(made) {
                    Ok(()) => "ready".to_owned(),
                    Err(_) => "the next service is set".to_owned(),
                }
            }
            [how @ ("closed" | "open"), way, ms, number] => {
                let way = ways.get().and_then(|ways| ways.get(way.parse::<usize>().ok()?));
                load_by(way.ok_or("there is no such way")?, how == "open", ms, number).await?
            }
            _ => format!("unknown order '{order}'"),
        };
        println!("{done}");
    }
    Ok(())
}
