//! `bench/run shards`: a map of 1.5 million shards on one machine: memory of an agent and twenty programs, bytes of a
//! shard move on the wire, and the time of a look-up.
//!
//! Memory is the sum of the processes' proportional set sizes (PSS), in which shared pages count once. The memory of
//! the same processes with the same endpoints and no map is subtracted.

mod counting_relay;

use std::{error::Error, fs, path::Path, time::Duration};

use fairmesh_wire::transport::Address;
use tokio::time::{Instant, sleep};

use crate::{report::Report, role_process::RoleProcess};
use counting_relay::Relay;

/// Number of programs on the machine.
const CALLERS: usize = 20;
/// Number of servers, each with as many primaries as secondaries.
const SERVERS: usize = 3000;
/// Goals: megabytes at rest and at the peak of a swap, bytes per move and subscriber, nanoseconds.
const REST_MB: f64 = 60.0;
const PEAK_MB: f64 = 120.0;
const MOVE_BYTES: f64 = 200.0;
const LOOKUP_NS: f64 = 250.0;
/// Timeout for memory to settle, and for a change to reach all processes.
const PATIENCE: Duration = Duration::from_secs(120);
/// Memory is at rest if it changes by less than a thousandth within this time.
const REST: Duration = Duration::from_secs(3);

/// Sizes and repetitions.
#[derive(Clone, Copy, Debug)]
struct Scale {
    shards: usize,
    moves: usize,
    lookups: usize,
}

impl Scale {
    fn new(quick: bool) -> Self {
        match quick {
            true => Self { shards: 150_000, moves: 10, lookups: 1_000_000 },
            false => Self { shards: 1_500_000, moves: 50, lookups: 5_000_000 },
        }
    }
}

/// An agent and its programs, and the source they follow.
struct Machine {
    source: RoleProcess,
    agent: RoleProcess,
    callers: Vec<RoleProcess>,
    relay: Relay,
}

/// Results of one machine.
struct Results {
    baseline: u64,
    rest: u64,
    agent: u64,
    peak: u64,
    moved: Vec<u64>,
    said: Vec<u64>,
    lookup_ns: Vec<f64>,
    settled: Duration,
}

/// Runs the benchmark.
pub(crate) fn run(quick: bool) -> Result<Report, Box<dyn Error>> {
    let scale = Scale::new(quick);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let found = runtime.block_on(measure(scale))?;
    let mut report = Report::new("shards");
    let scaled =
        if quick { "; --quick takes a tenth of the shards, so that goals of memory say little" } else { "" };
    let note = format!("two copies each, over {SERVERS} servers{scaled}");
    report.figure("shards", scale.shards as f64, None, note);
    let mb = |bytes: u64| bytes as f64 / 1e6;
    let above = |bytes: u64| mb(bytes.saturating_sub(found.baseline));
    let note = format!(
        "MB of PSS that the map adds to an agent and {CALLERS} programs, which take {:.0} without it; the agent {:.1} in all",
        mb(found.baseline),
        mb(found.agent)
    );
    report.figure("total_mb_20_clients", above(found.rest), Some(REST_MB), note);
    let note = "MB added at most, looked at all the time while shards move and one is split, which makes all tables anew";
    report.figure("swap_peak_mb", above(found.peak), Some(PEAK_MB), note);
    let (moved, said) = (middle(&found.moved), middle(&found.said));
    let note =
        format!("bytes from the upstream to the agent, in the middle of {} moves; {said} back", scale.moves);
    report.figure("bytes_per_move", moved as f64, Some(MOVE_BYTES), note);
    let mut times = found.lookup_ns.clone();
    times.sort_by(f64::total_cmp);
    let note = format!(
        "ns, {:.0} to {:.0} over {} programs, random keys in the agent's memory",
        times[0],
        times[times.len() - 1],
        times.len()
    );
    report.figure("lookup_ns", times[times.len() / 2], Some(LOOKUP_NS), note);
    let note = "seconds from the start of the agent until every program decides by the map";
    report.figure("first_s", found.settled.as_secs_f64(), None, note);
    Ok(report)
}

fn middle(counts: &[u64]) -> u64 {
    let mut counts = counts.to_vec();
    counts.sort_unstable();
    counts.get(counts.len() / 2).copied().unwrap_or_default()
}

async fn measure(scale: Scale) -> Result<Results, String> {
    let dir = tempfile::tempdir().map_err(|e| e.to_string())?;
    let mut unloaded = Machine::start(&dir.path().join("unloaded"), 0).await?;
    let (_, baseline) = unloaded.at_rest().await?;
    drop(unloaded);
    let began = Instant::now();
    let mut machine = Machine::start(&dir.path().join("full"), scale.shards).await?;
    let settled = began.elapsed();
    let (agent, rest) = machine.at_rest().await?;
    let mut lookup_ns = Vec::new();
    for caller in &mut machine.callers {
        lookup_ns.push(number(&caller.order(format!("look {}", scale.lookups), PATIENCE).await?)?);
    }
    let (mut moved, mut said, mut peak) = (Vec::new(), Vec::new(), rest);
    for number in 0..scale.moves {
        let before = machine.relay.counts();
        machine.change(&format!("move {number}"), &mut peak).await?;
        let after = machine.relay.counts();
        moved.push(after.0 - before.0);
        said.push(after.1 - before.1);
    }
    machine.change("split", &mut peak).await?;
    Ok(Results { baseline, rest, agent, peak, moved, said, lookup_ns, settled })
}

impl Machine {
    /// Starts everything, and waits until every program can use the map.
    async fn start(dir: &Path, shards: usize) -> Result<Self, String> {
        fs::create_dir_all(dir).map_err(|e| e.to_string())?;
        let (shards, servers) = (shards.to_string(), SERVERS.to_string());
        let args = ["shard-source", "--shards", &shards, "--servers", &servers];
        let (source, address) = RoleProcess::start_bare(dir, &args).await?;
        let upstream: Address = address.parse().map_err(|_| format!("'{address}' is no address"))?;
        let relay = Relay::start(upstream).await.map_err(|e| e.to_string())?;
        let through = relay.address().to_string();
        let (agent, _) = RoleProcess::start_bare(dir, &["shard-agent", "--upstream", &through]).await?;
        let mut callers = Vec::new();
        for i in 0..CALLERS {
            let name = i.to_string();
            callers.push(RoleProcess::start_bare(dir, &["shard-caller", "--name", &name]).await?.0);
        }
        Ok(Self { source, agent, callers, relay })
    }

    /// Proportional set size of the agent, and of the agent and all programs together.
    fn pss(&self) -> Result<(u64, u64), String> {
        let agent = pss(self.agent.pid())?;
        self.callers
            .iter()
            .try_fold((agent, agent), |(agent, all), caller| Ok((agent, all + pss(caller.pid())?)))
    }

    /// As `pss`, once memory has settled.
    async fn at_rest(&mut self) -> Result<(u64, u64), String> {
        let deadline = Instant::now() + PATIENCE;
        let mut last = self.pss()?;
        let mut since = Instant::now();
        loop {
            sleep(Duration::from_millis(200)).await;
            let now = self.pss()?;
            if now.1.abs_diff(last.1) > last.1 / 1000 {
                (last, since) = (now, Instant::now());
            } else if since.elapsed() > REST {
                return Ok(now);
            }
            if Instant::now() > deadline {
                return Err("memory did not come to rest".into());
            }
        }
    }

    /// Makes a change, and waits until every program uses and acknowledges it; records the peak of memory meanwhile.
    async fn change(&mut self, order: &str, peak: &mut u64) -> Result<(), String> {
        let version = self.source.order(order.to_owned(), PATIENCE).await?;
        let deadline = Instant::now() + PATIENCE;
        let mut behind: Vec<usize> = (0..self.callers.len()).collect();
        let wanted = number(&version)?;
        while !behind.is_empty() {
            *peak = self.pss()?.1.max(*peak);
            let mut still = Vec::new();
            for i in behind {
                let held = self.callers[i].order("version".into(), PATIENCE).await?;
                if number(&held)? < wanted {
                    still.push(i);
                }
            }
            behind = still;
            if Instant::now() > deadline {
                return Err(format!("'{order}' did not reach every program"));
            }
        }
        // The acknowledgements belong to the move, too.
        while self.source.order("behind".into(), PATIENCE).await? != "0" {
            *peak = self.pss()?.1.max(*peak);
            sleep(Duration::from_millis(5)).await;
            if Instant::now() > deadline {
                return Err(format!("'{order}' was not acknowledged"));
            }
        }
        Ok(())
    }
}

fn number(text: &str) -> Result<f64, String> {
    text.parse().map_err(|_| format!("'{text}' is no number"))
}

/// Proportional set size of a process, in bytes.
fn pss(pid: u32) -> Result<u64, String> {
    let path = format!("/proc/{pid}/smaps_rollup");
    let text = fs::read_to_string(&path).map_err(|e| format!("cannot read {path}: {e}"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:")).ok_or("there is no Pss")?;
    let kb: u64 = line.trim().trim_end_matches(" kB").parse().map_err(|_| format!("'{line}' is no size"))?;
    Ok(kb * 1024)
}
