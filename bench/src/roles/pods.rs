//! The programs of many pods: servers, and callers with addresses of their own.
//!
//! They are one process with one thread, as [both ends of a proxy](super::proxy_ends).

use std::{
    net::{IpAddr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use tokio::net::TcpListener;

use super::{BoxError, load_by, minimal_peers::http1, orders};
use crate::load_generator::Call;

/// The callers of one side, which call in turn.
#[derive(Clone)]
struct Callers {
    all: Arc<[http1::Caller]>,
    next: Arc<AtomicUsize>,
}

impl Call for Callers {
    async fn call(&self) -> Result<(), String> {
        let turn = self.next.fetch_add(1, Relaxed);
        self.all[turn % self.all.len()].call().await
    }
}

/// Serves at these addresses, and executes call commands until its input ends.
///
/// `side PAYLOAD SOURCE=ADDRESS,…` adds a side, whose callers call from these source addresses (any, if empty); each
/// makes a first call. `closed SIDE MS TASKS` and `open SIDE MS RATE` let the callers of a side call.
pub(super) async fn run(servers: &[SocketAddr]) -> Result<(), BoxError> {
    for address in servers {
        tokio::spawn(http1::serve(TcpListener::bind(address).await?));
    }
    println!("ready");
    let mut sides = Vec::new();
    let mut orders = orders();
    while let Some(order) = orders.next_line().await? {
        let words: Vec<&str> = order.split(' ').collect();
        let done = match words[..] {
            ["side", payload, pairs] => match side(payload.parse()?, pairs).await {
                Ok(callers) => {
                    sides.push(callers);
                    "ready".to_owned()
                }
                Err(why) => why.to_string(),
            },
            [how @ ("closed" | "open"), side, ms, number] => {
                let callers = sides.get(side.parse::<usize>()?).ok_or("there is no such side")?;
                load_by(callers, how == "open", ms, number).await?
            }
            _ => format!("unknown order '{order}'"),
        };
        println!("{done}");
    }
    Ok(())
}

async fn side(payload: usize, pairs: &str) -> Result<Callers, BoxError> {
    let mut all = Vec::new();
    for pair in pairs.split(',') {
        let (source, to) = pair.split_once('=').ok_or("no SOURCE=ADDRESS")?;
        let source = (!source.is_empty()).then(|| source.parse::<IpAddr>()).transpose()?;
        let caller = http1::Caller::new(to.parse()?, "pods.bench", payload).bound_to(source);
        caller.call().await?;
        all.push(caller);
    }
    Ok(Callers { all: all.into(), next: Arc::default() })
}
