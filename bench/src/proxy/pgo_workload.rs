//! The workload for profile-guided optimisation (scripts/release.sh): the most frequent work of proxies, without peers
//! and figures.

use std::{error::Error, path::Path, time::Duration};

use super::{BODIES, Contender, Contenders, MANY, MULTIPLEXED, Ours, SMALL, WireProtocol};

/// Duration for each protocol and body size.
const SLICE: Duration = Duration::from_millis(600);

/// Calls through a proxy over every protocol with every measured body size. Its processes end regularly, so that they
/// write their profiles.
pub(crate) fn run(ours: &Ours) -> Result<(), Box<dyn Error>> {
    let program = ours.program()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let dir = tempfile::tempdir()?;
    runtime.block_on(async {
        for spoken in [WireProtocol::Http1, WireProtocol::Http2, WireProtocol::Grpc] {
            let calls = load_one((dir.path(), &program), spoken).await?;
            eprintln!("{spoken}: {calls} calls");
        }
        Ok(())
    })
}

async fn load_one(places: (&Path, &Path), spoken: WireProtocol) -> Result<u64, String> {
    let mut sides = Contenders::start(places, spoken, &[Contender::Fairmesh]).await?;
    let is_multiplexed = spoken != WireProtocol::Http1;
    let (connections, at_once) = if is_multiplexed { MULTIPLEXED } else { (1, MANY) };
    let mut calls = 0;
    for body in BODIES.into_iter().filter(|body| !is_multiplexed || *body <= SMALL) {
        sides.callers(body, connections).await?;
        calls += sides.closed(0, at_once, SLICE).await?.calls;
    }
    for (_, proxy) in sides.proxies.drain(..) {
        proxy.stop().await?;
    }
    Ok(calls)
}
