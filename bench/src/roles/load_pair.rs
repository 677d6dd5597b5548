//! Both ends of a proxy: the endpoints behind it, and the callers before it.
//!
//! They are one process with one thread. As two on the same processor they would wake each other, and the proxy one of
//! them, at nearly every message: what that costs made them slower than a minimal proxy, which then waited for them, and a
//! proxy that waits is woken for every request, which costs it more than one that is behind.

use std::{
    net::{Ipv4Addr, SocketAddr},
    time::Duration,
};

use tokio::net::TcpListener;

use super::{BoxError, Protocol, load_by, minimal_peers, orders, said};
use crate::load::{self, Call};

/// How many endpoints there are.
const ENDPOINTS: usize = 2;

/// Starts the endpoints, prints their addresses, and calls as ordered, this host over HTTP/1.1, until its input ends.
pub(super) async fn run(protocol: Protocol, cgroup: Option<&str>, host: &str) -> Result<(), BoxError> {
    if let Some(cgroup) = cgroup {
        fairmesh_kernel::enter_cgroup(cgroup)?;
    }
    let mut addresses = Vec::new();
    for _ in 0..ENDPOINTS {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        addresses.push(listener.local_addr()?.to_string());
        match protocol {
            Protocol::Http1 => tokio::spawn(minimal_peers::http1::serve(listener)),
            Protocol::Http2 | Protocol::Grpc => tokio::spawn(minimal_peers::http2::serve(listener, protocol)),
        };
    }
    println!("{}", addresses.join(","));
    match protocol {
        Protocol::Http1 => {
            execute_orders(async |to, payload, _| Ok(minimal_peers::http1::Caller::new(to, host, payload)))
                .await
        }
        Protocol::Http2 | Protocol::Grpc => {
            execute_orders(async |to, payload, connections| {
                minimal_peers::http2::Caller::connect(protocol, &vec![to; connections], payload).await
            })
            .await
        }
    }
}

/// Responds to an order with a line. `call PAYLOAD CONNECTIONS ADDRESS,…` makes callers of these addresses, over so
/// many connections each where the protocol shares them, and lets go of those before; `closed SIDE MS TASKS` and `open
/// SIDE MS RATE` have one of them call, and `paced MS RATE` has all of them call, so many calls a second together.
async fn execute_orders<C: Call>(
    connect: impl AsyncFn(SocketAddr, usize, usize) -> Result<C, BoxError>,
) -> Result<(), BoxError> {
    let mut callers = Vec::new();
    let mut orders = orders();
    while let Some(order) = orders.next_line().await? {
        let words: Vec<&str> = order.split(' ').collect();
        let done = match words[..] {
            ["call", payload, connections, to] => {
                callers.clear();
                for to in to.split(',') {
                    let caller = connect(to.parse()?, payload.parse()?, connections.parse()?).await?;
                    caller.call().await?;
                    callers.push(caller);
                }
                "ready".to_owned()
            }
            [how @ ("closed" | "open"), side, ms, number] => {
                let caller = callers.get(side.parse::<usize>()?).ok_or("there is no such side")?;
                load_by(caller, how == "open", ms, number).await?
            }
            ["paced", ms, rate] => {
                said(load::paced(&callers, rate.parse()?, Duration::from_millis(ms.parse()?)).await)
            }
            _ => format!("unknown order '{order}'"),
        };
        println!("{done}");
    }
    Ok(())
}
