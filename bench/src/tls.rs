//! `bench/run tls`: cost of mutual TLS.
//!
//! Compares library calls with a hand-written stack on the same rustls, sidecars and handshakes with Envoy, and
//! listeners whose key is on a key server with listeners that have a local key. Sides alternate within each round.

pub(crate) mod certificate_authority;
mod envoy;
mod library;
mod sidecars;
mod signer;
mod signing_cpu;

use std::{error::Error, time::Duration};

use crate::{
    paired_ratio::Median,
    proxy::contenders::{on_path, version},
    report::Report,
};
use sidecars::Compared;

/// Name of the key server's figure.
const HANDSHAKES: &str = "remote_signer_handshakes_ratio";
const STALL: &str = "remote_signer_stall_ratio";
/// Name of the figure of a node that signs nothing itself.
const SIGNING_CPU: &str = "remote_sign_node_cpu_ratio";

/// Durations and repetitions.
#[derive(Clone, Copy, Debug)]
struct Scale {
    rounds: usize,
    /// Duration for which a side of the library is called in a round.
    library: Duration,
    /// Duration for which a sidecar is called in a round.
    slice: Duration,
    /// Duration for which a listener of the key server comparison is called in a round.
    signer: Duration,
}

impl Scale {
    fn new(quick: bool) -> Self {
        let ms = Duration::from_millis;
        match quick {
            true => Self { rounds: 4, library: ms(200), slice: ms(200), signer: ms(500) },
            false => Self { rounds: 15, library: ms(1000), slice: ms(500), signer: ms(2000) },
        }
    }
}

/// Runs the benchmark.
pub(crate) fn run(quick: bool) -> Result<Report, Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let scale = Scale::new(quick);
    let dir = tempfile::tempdir()?;
    let mut report = Report::new("tls");
    report.peer("hyper and tonic on tokio-rustls with hard-coded addresses", "of this build");
    if let Some(envoy) = on_path("envoy") {
        report.peer("envoy", version(&envoy, "--version")?);
    }
    runtime.block_on(async {
        tell_library(&mut report, &library::measure(dir.path(), scale).await?);
        tell_sidecars(&mut report, &sidecars::measure(&dir.path().join("sidecars"), scale).await?);
        match signer::measure(&dir.path().join("signer"), scale).await {
            Ok(found) => tell_signer(&mut report, &found),
            Err(why) => {
                for name in [HANDSHAKES, STALL] {
                    report.unmeasured(name, &why);
                }
            }
        }
        let signing = signing_cpu::measure(&dir.path().join("signing"), scale).await;
        tell_signing_cpu(&mut report, &signing);
        Ok::<_, String>(())
    })?;
    Ok(report)
}

fn tell_library(report: &mut Report, cases: &[library::Case]) {
    for case in cases {
        eprintln!("{case}");
    }
    let mut worst = |name, of: fn(&library::Case) -> Median, goal| {
        if let Some(case) = cases.iter().max_by(|a, b| of(a).value.total_cmp(&of(b).value)) {
            report.figure(name, of(case).value, goal, format!("the worst, {case}"));
        }
    };
    worst("mtls_cpu_vs_stack", |case| case.over_stack, Some(1.15));
    worst("mtls_cpu_ratio", |case| case.over_plaintext, None);
}

fn tell_sidecars(report: &mut Report, found: &sidecars::Found) {
    let mut beside = |name, what, goal, compared: &Result<Compared, String>| match compared {
        Ok(Compared { ratio, us: [ours, theirs] }) => {
            let note = format!("CPU of {what}: {ratio}; {ours:.1} over {theirs:.1} µs");
            report.figure(name, ratio.value, Some(goal), note);
        }
        Err(why) => report.unmeasured(name, why),
    };
    beside("mtls_cpu_vs_envoy", "both sidecars for a call of 5.5 KB", 0.6, &found.calls);
    let handshakes = "the server's sidecar for a connection with one request, over Envoy's";
    beside("handshake_cpu_vs_envoy", handshakes, 1.2, &found.handshakes);
    let Compared { ratio, us: [resumed, full] } = &found.resumed;
    let note = format!(
        "a connection with one request that resumes over one that does not: {ratio}; {resumed:.1} over {full:.1} µs; {} ‰ resumed",
        found.resumed_share
    );
    report.figure("resumed_cpu_ratio", ratio.value, None, note);
    let all: Vec<_> =
        ["fairmesh", "envoy"].iter().zip(&found.idle).map(|(who, bytes)| format!("{who} {bytes}")).collect();
    if let Some(ours) = found.idle.first() {
        let note = format!(
            "bytes of the server's sidecar for a connection that idles after a request: {}",
            all.join(", ")
        );
        report.figure("idle_tls_bytes", *ours as f64, None, note);
    }
}

fn tell_signer(report: &mut Report, found: &signer::Found) {
    let signer::Found { handshakes, rates: [remote, local], stall, p99_ms: [slow, fast] } = found;
    let note = format!(
        "64 looping callers, the key server 10 ms away, over a local key: {handshakes}; {remote:.0} over {local:.0} connections a second"
    );
    report.figure_at_least(HANDSHAKES, handshakes.value, 0.8, note);
    let note =
        format!("p99 of other requests meanwhile, over a local key: {stall}; {slow:.1} over {fast:.1} ms");
    report.figure(STALL, stall.value, Some(2.0), note);
}

fn tell_signing_cpu(report: &mut Report, found: &Result<Compared, String>) {
    match found {
        Ok(Compared { ratio, us: [remote, local] }) => {
            let note = format!(
                "CPU of the proxy for a connection with a full handshake and one request, RSA-2048, signed by the key server over signed by the proxy: {ratio}; {remote:.0} over {local:.0} µs"
            );
            report.figure(SIGNING_CPU, ratio.value, Some(0.7), note);
        }
        Err(why) => report.unmeasured(SIGNING_CPU, why),
    }
}
