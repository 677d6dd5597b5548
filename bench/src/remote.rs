//! `bench/run remote`: rare calls to another region, each over a connection of the program's own, and through a proxy
//! that many programs share (ServiceRouter §4.2.2).
//!
//! A program that calls seldom pays for a connection with each call, since it keeps none for so long. Those of a proxy
//! that many share are in use all the time. Both are called at the same time, in turns, by programs that call once.

pub(crate) mod link;

use std::{error::Error, path::Path, process::Command, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{proxy::process::Process, ratio::Ratio, report::Report, role_process::RoleProcess};
use link::{FAR, Link};

/// How long a packet takes each way. Regions of one continent are about so far apart.
const DELAY: Duration = Duration::from_millis(40);
/// Bytes of bodies, the same there and back, a third of the calls each; those of `library`.
pub(crate) const BODIES: [usize; 3] = [600, 5_500, 55_000];
/// Programs of one round, on each side; each calls once.
const PROGRAMS: usize = 201;
/// Where the proxy is, for programs of its region.
const PROXY: &str = "127.0.0.1:7410";
const ADMIN: &str = "127.0.0.1:7411";
/// P90 latency with and without a shared proxy: 325 ms became 150 (ServiceRouter §4.2.2).
const GOAL: f64 = 0.46;

/// How long each call of a round took, in nanoseconds, with the size of its body.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Round {
    pub(crate) own: Vec<(usize, u64)>,
    pub(crate) shared: Vec<(usize, u64)>,
}

/// How often the proxy sent a request, and how often over a connection that had carried another.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Kept {
    pub(crate) tries: f64,
    pub(crate) reused: f64,
}

/// Measures.
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
    // Rounds, and the time from one program's call to the next one's.
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
    // Records travel through the file system, and cost no distance.
    let (_mesh, _) = RoleProcess::start(dir, &["mesh"]).await?;
    let (_servers, _) =
        RoleProcess::start(dir, &["remote-servers", "--address", FAR, "--place", &far]).await?;
    let _proxy = proxy(dir, &near)?;
    let (mut programs, _) =
        RoleProcess::start(dir, &["rare-calls", "--proxy", PROXY, "--admin", ADMIN, "--place", &near])
            .await?;
    let mut seen = Vec::new();
    let length = 2 * apart * u32::try_from(PROGRAMS).unwrap_or(u32::MAX);
    // The first one warms the proxy up.
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

/// The time within which nine calls in ten had their response.
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
    fn the_p90_is_that_of_the_calls_that_count() {
        let calls: Vec<_> = (1..=20).map(|call| (BODIES[call % 2], call as u64)).collect();
        assert_eq!(p90(&calls), 18);
        assert_eq!(p90(&of_size(&calls, Some(BODIES[0]))), 18);
        assert_eq!(p90(&of_size(&calls, Some(BODIES[1]))), 17);
        assert_eq!(p90(&[]), 0);
    }
}
