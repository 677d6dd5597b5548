//! `bench/run remote`: rare calls to another region, each over its own connection, compared with a proxy that many
//! programs share (ServiceRouter §4.2.2).
//!
//! A program that rarely calls must connect for each call, since it keeps no connection for so long. The connections of
//! a shared proxy are always in use. Programs that call once use both ways at the same time, in turns.

pub(crate) mod network_link;

use std::{error::Error, path::Path, process::Command, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{paired_ratio::Ratio, proxy::process::Process, report::Report, role_process::RoleProcess};
use network_link::{FAR, Link};

/// One-way delay of a packet, about that between regions of one continent.
const DELAY: Duration = Duration::from_millis(40);
/// Bytes of each request and response body, as in `library`. A third of the calls each.
pub(crate) const BODIES: [usize; 3] = [600, 5_500, 55_000];
/// Programs of one round on each side. Each calls once.
const PROGRAMS: usize = 201;
/// Address of the proxy for programs of its region.
const PROXY: &str = "127.0.0.1:7410";
const ADMIN: &str = "127.0.0.1:7411";
/// Goal for the ratio of p90 latency with and without a shared proxy: 325 ms became 150 ms (ServiceRouter §4.2.2).
const GOAL: f64 = 0.46;

/// Latency of each call of a round in nanoseconds, with its body size.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Round {
    pub(crate) own: Vec<(usize, u64)>,
    pub(crate) shared: Vec<(usize, u64)>,
}

/// Number of requests that the proxy sent, and how many of them reused a connection.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Kept {
    pub(crate) tries: f64,
    pub(crate) reused: f64,
}

/// Runs the benchmark.
pub(crate) fn run(quick: bool) -> Result<Report, Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut report = Report::new("remote");
    let link = match Link::new(DELAY) {
        Ok(link) => link,
        Err(why) => {
            report.unmeasured("p90_ratio", why);
            return Ok(report);
        }
    };
    // Number of rounds, and the interval between the calls of programs.
    let (rounds, apart) =
        if quick { (3, Duration::from_millis(50)) } else { (5, Duration::from_millis(125)) };
    let dir = tempfile::tempdir()?;
    let (rounds, kept) = runtime.block_on(measure(dir.path(), &link, rounds, apart))?;
    tell(&mut report, &rounds, kept, apart);
    Ok(report)
}

async fn measure(
    dir: &Path,
    link: &Link,
    rounds: usize,
    apart: Duration,
) -> Result<(Vec<Round>, Kept), String> {
    let (near, far) = (link.near.path(), link.far.path());
    // Records travel over Unix sockets, so they do not cross the link.
    let (_mesh, _) = RoleProcess::start(dir, &["mesh"]).await?;
    let (_servers, _) =
        RoleProcess::start(dir, &["remote-servers", "--address", FAR, "--place", &far]).await?;
    let _proxy = proxy(dir, &near)?;
    let (mut programs, _) =
        RoleProcess::start(dir, &["rare-calls", "--proxy", PROXY, "--admin", ADMIN, "--place", &near])
            .await?;
    let mut seen = Vec::new();
    let length = 2 * apart * u32::try_from(PROGRAMS).unwrap_or(u32::MAX);
    // The first round warms the proxy up.
    for round in 0..=rounds {
        let answer = programs.order(format!("round {PROGRAMS} {}", apart.as_micros()), length).await?;
        let one: Round = serde_json::from_str(&answer).map_err(|_| format!("programs: {answer}"))?;
        eprintln!("round {round}: P90 {:.1} ms, {:.1} ms shared", ms(p90(&one.own)), ms(p90(&one.shared)));
        if round > 0 {
            seen.push(one);
        }
    }
    let kept = programs.order("kept".into(), Duration::ZERO).await?;
    Ok((seen, serde_json::from_str(&kept).map_err(|_| format!("programs: {kept}"))?))
}

fn proxy(dir: &Path, place: &str) -> Result<Process, String> {
    let this = std::env::current_exe().map_err(|e| e.to_string())?;
    let agent = format!("unix:{}", dir.join("agent.sock").display());
    let mut command = Command::new(&this);
    command.args(["role", "--place", place, "launch"]).arg(this.with_file_name("fairmesh"));
    command.args(["proxy", "--agent", &agent, "--listen", PROXY, "--admin", ADMIN, "--client-id", "shared"]);
    Process::start(dir, "proxy", command)
}

fn tell(report: &mut Report, rounds: &[Round], kept: Kept, apart: Duration) {
    let of = |size: Option<usize>| {
        let ratios = rounds.iter().map(|round| {
            let [own, shared] = [&round.own, &round.shared].map(|calls| p90(&of_size(calls, size)) as f64);
            shared / own
        });
        Ratio::of(&ratios.collect::<Vec<_>>())
    };
    let side = |of: fn(&Round) -> &Vec<(usize, u64)>| {
        let mut all: Vec<u64> = rounds.iter().map(|round| p90(of(round))).collect();
        all.sort_unstable();
        ms(all.get(all.len() / 2).copied().unwrap_or_default())
    };
    let (own, shared) = (side(|round| &round.own), side(|round| &round.shared));
    let all = of(None);
    let note = format!(
        "P90 through a shared proxy over that of connections of one's own: {all}; {shared:.0} over {own:.0} ms; round trip \
         {} ms, {:.0} programs a second on each side",
        2 * DELAY.as_millis(),
        1.0 / (2.0 * apart.as_secs_f64())
    );
    report.figure("p90_ratio", all.mean, Some(GOAL), note);
    for size in BODIES {
        let ratio = of(Some(size));
        report.figure(format!("p90_ratio_{size}"), ratio.mean, None, format!("bodies of {size} B: {ratio}"));
    }
    report.figure("own_p90_ms", own, None, "ms, the median of rounds");
    report.figure("shared_p90_ms", shared, None, "ms, the median of rounds");
    let share = kept.reused / kept.tries.max(1.0);
    report.figure_at_least(
        "reuse",
        share,
        0.99,
        "of the proxy's requests, over a connection that had carried another",
    );
}

fn of_size(calls: &[(usize, u64)], size: Option<usize>) -> Vec<(usize, u64)> {
    calls.iter().filter(|call| size.is_none_or(|size| call.0 == size)).copied().collect()
}

/// 90th percentile of latency.
fn p90(calls: &[(usize, u64)]) -> u64 {
    let mut times: Vec<u64> = calls.iter().map(|call| call.1).collect();
    times.sort_unstable();
    times.get((times.len() * 9).div_ceil(10).saturating_sub(1)).copied().unwrap_or_default()
}

fn ms(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p90_is_nearest_rank_among_calls_of_selected_body_size() {
        let calls: Vec<_> = (1..=20).map(|call| (BODIES[call % 2], call as u64)).collect();
        assert_eq!(p90(&calls), 18);
        assert_eq!(p90(&of_size(&calls, Some(BODIES[0]))), 18);
        assert_eq!(p90(&of_size(&calls, Some(BODIES[1]))), 17);
        assert_eq!(p90(&[]), 0);
    }
}
