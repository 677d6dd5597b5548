//! Both ends of a proxy: the endpoints behind it, and the callers in front of it.
//!
//! They are one process with one thread. Two processes on the same processor would wake each other, and the proxy one
//! of them, at nearly every message. That made them slower than a minimal proxy, which then waited for them; and a
//! waiting proxy is woken for every request, which costs more than always having work.

use std::{
    net::{Ipv4Addr, SocketAddr},
    time::Duration,
};

use tokio::net::TcpListener;

use super::{BoxError, Protocol, load_by, minimal_peers, orders, said};
use crate::load_generator::{self, Call};

/// Number of endpoints.
const ENDPOINTS: usize = 2;

/// Starts the endpoints, prints their addresses, and executes call commands with `host` over HTTP/1.1, until its input
/// ends.
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

/// Responds to each command with a line. `call PAYLOAD CONNECTIONS ADDRESS,…` replaces the callers by callers of these
/// addresses, with that many connections each if the protocol multiplexes. `closed SIDE MS TASKS` and `open SIDE MS
/// RATE` let one of the callers call. `paced MS RATE` lets all of them call, at that total rate per second.
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
                said(load_generator::paced(&callers, rate.parse()?, Duration::from_millis(ms.parse()?)).await)
            }
            _ => format!("unknown order '{order}'"),
        };
        println!("{done}");
    }
    Ok(())
}
