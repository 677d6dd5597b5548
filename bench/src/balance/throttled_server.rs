//! Three server processes, one with half of the others' CPU. Library callers do not know the quotas.
//!
//! Utilisation is the used share of a server's CPU quota, both values from its cgroup. Each policy has its own servers
//! with the same quotas, and both sides are under load at the same time, so that other work on the machine affects both
//! alike. Rejected: alternating rounds. The default policy uses the CPU load of the last second, so each of its rounds
//! would start with the values from before.

use std::{error::Error, path::Path, time::Duration};

use fairmesh_model::{Balancing, BalancingPolicy, Policy, RecordKey};
use fairmesh_server::terminated;
use fairmesh_wire::{
    handshake, record_encoding,
    transport::Address,
    v1::{ApplyRequest, Op},
};
use tokio::time::{Instant, sleep};

use super::cgroups::{Cgroup, Cgroups};
use crate::{
    load_generator::Seen, process_usage, report::Report, role_process::RoleProcess,
    roles::compute_servers::compute,
};

/// CPU quota of each server, in thousandths of a core; the last one is throttled. The six servers of both sides may use
/// one and a half cores and use about half of that, so two cores suffice for them and their callers.
const ALLOWANCES: [u64; 3] = [300, 300, 150];
/// CPU work of the requests themselves, in percent of the sum of all quotas. The cost of transport comes on top.
const LOAD: u64 = 42;
/// Mean CPU time of a request's work on an idle core. Requests are small and many: with few large ones, the result
/// would depend on which server gets one more in a round.
const WORK: Duration = Duration::from_micros(400);
/// Number of clients.
const CLIENTS: u32 = 4;
/// If the median call takes longer than this, the machine was too busy for servers to use their quotas.
const BUSY: Duration = Duration::from_millis(50);
/// Goals. With equal shares of requests, the utilisation of the throttled server would be twice that of the others.
const P99_RATIO: f64 = 0.88;
const CV: f64 = 0.10;
const THROTTLED: (f64, f64) = (0.9, 1.1);
/// Names of the figures, in display order.
const NAMES: [&str; 3] = ["real_p99_util_ratio", "real_cv", "real_throttled_ratio"];
/// The compared services: one with the default policy, one with least request.
const SERVICES: [&str; 2] = ["bench/default", "bench/least-request"];

/// Durations of the measurement.
#[derive(Clone, Copy, Debug)]
struct Scale {
    /// Time until the default policy has learnt the capacity of each server: its slow loop needs about 10 s for two
    /// thirds of the way.
    settle: Duration,
    rounds: usize,
    round: Duration,
}

impl Scale {
    fn new(quick: bool) -> Self {
        let seconds = Duration::from_secs_f64;
        if quick {
            Self { settle: seconds(28.0), rounds: 3, round: seconds(2.0) }
        } else {
            Self { settle: seconds(40.0), rounds: 5, round: seconds(15.0) }
        }
    }
}

/// Result of one round with one policy.
#[derive(Clone, Copy, Debug)]
struct Round {
    /// Utilisation of each server.
    utilisation: [f64; 3],
    /// Latency of the calls.
    seen: Seen,
    length: Duration,
}

impl Round {
    /// The 99th percentile of three values by nearest rank, which is the maximum.
    fn p99(&self) -> f64 {
        self.utilisation.iter().copied().fold(0.0, f64::max)
    }

    /// Utilisation of the throttled server, divided by the mean of the others.
    fn throttled(&self) -> f64 {
        let [a, b, throttled] = self.utilisation;
        throttled / ((a + b) / 2.0)
    }

    /// Coefficient of variation: standard deviation divided by mean.
    fn cv(&self) -> f64 {
        let mean = self.utilisation.iter().sum::<f64>() / 3.0;
        let variance = self.utilisation.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / 3.0;
        variance.sqrt() / mean
    }
}

impl std::fmt::Display for Round {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [a, b, throttled] = self.utilisation.map(|share| share * 100.0);
        let calls = self.seen.calls as f64 / self.length.as_secs_f64();
        let [p50, p99] = [self.seen.p50, self.seen.p99].map(|ns| ns as f64 / 1e6);
        write!(
            f,
            "used {a:.1} %, {b:.1} %, throttled {throttled:.1} % (ratio {:.2}); {calls:.0} calls/s, \
             p50 {p50:.1} ms, p99 {p99:.1} ms",
            self.throttled()
        )
    }
}

/// Measures. Figures that cannot be measured are reported with the reason.
pub(super) fn run(quick: bool, report: &mut Report) -> Result<(), Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let measured = runtime.block_on(async {
        tokio::select! {
            measured = measure(Scale::new(quick)) => measured,
            () = terminated() => Err("it was interrupted".into()),
        }
    });
    match measured {
        Ok(rounds) => figures(&rounds, report),
        Err(why) => NAMES.into_iter().for_each(|name| report.unmeasured(name, &why)),
    }
    Ok(())
}

/// Runs the rounds; each runs our side and the peer's at the same time.
async fn measure(scale: Scale) -> Result<Vec<[Round; 2]>, String> {
    // Dropped in reverse order: the cgroups are removed once their processes have ended.
    let mut groups = Cgroups::new()?;
    let dir = tempfile::tempdir().map_err(|e| e.to_string())?;
    let (_mesh, control) = RoleProcess::start(dir.path(), &["mesh"]).await?;
    prefer_least_request(&Address::Tcp(control)).await?;
    let rounds = rounds_of(WORK);
    let mut ours = Side::start(dir.path(), SERVICES[0], rounds, &mut groups).await?;
    let mut theirs = Side::start(dir.path(), SERVICES[1], rounds, &mut groups).await?;
    let mut all = Vec::new();
    for number in 0..=scale.rounds {
        let (name, length) = if number == 0 {
            ("settling".into(), scale.settle)
        } else {
            (format!("round {number}"), scale.round)
        };
        let (ours, theirs) = tokio::try_join!(ours.round(length), theirs.round(length))?;
        eprintln!("{name}\n  default       {ours}\n  least request {theirs}");
        if number > 0 {
            let p50 = Duration::from_nanos(ours.seen.p50.min(theirs.seen.p50));
            if p50 > BUSY {
                return Err(format!("the machine is too busy: half of the calls took {p50:?}; run it alone"));
            }
            all.push([ours, theirs]);
        }
    }
    Ok(all)
}

/// Sets least request as the policy of the peer's service, as soon as the control plane listens.
async fn prefer_least_request(control: &Address) -> Result<(), String> {
    let service = SERVICES[1].parse().map_err(|e| format!("{e}"))?;
    let balancing = Balancing { policy: BalancingPolicy::LeastRequest, ..Balancing::default() };
    let policy = Policy { balancing, ..Policy::default() };
    let op = Op {
        key: RecordKey::Policy(service).to_string(),
        value: Some(record_encoding::encode(&policy.into())),
        condition: None,
    };
    let request = ApplyRequest { ops: vec![op], dry_run: false, ..Default::default() };
    let until = Instant::now() + Duration::from_secs(10);
    loop {
        let problem = match handshake::connect(&Default::default(), control, "fairmesh-bench").await {
            Ok(connection) => match connection.admin().apply(request.clone()).await {
                Ok(_) => return Ok(()),
                Err(status) => status.to_string(),
            },
            Err(error) => error.to_string(),
        };
        if Instant::now() > until {
            return Err(format!("the policy could not be applied: {problem}"));
        }
        sleep(Duration::from_millis(20)).await;
    }
}

/// Servers of one service with their callers.
struct Side {
    callers: RoleProcess,
    _workers: Vec<RoleProcess>,
    groups: Vec<Cgroup>,
}

impl Side {
    /// Starts servers and callers. A request costs `rounds` rounds of work on average.
    async fn start(dir: &Path, service: &str, rounds: u32, groups: &mut Cgroups) -> Result<Self, String> {
        let mut workers = Vec::new();
        let mut limited = Vec::new();
        for (number, allowance) in ALLOWANCES.into_iter().enumerate() {
            let name = format!("{}-{number}", service.replace('/', "-"));
            let group = groups.add(&name, Some(allowance))?;
            let args = ["worker", "--service", service, "--name", &name, "--groups", &group.list()];
            workers.push(RoleProcess::start(dir, &args).await?.0);
            limited.push(group);
        }
        // Other work on the machine should affect callers no more than servers.
        let own = groups.add(&format!("{}-callers", service.replace('/', "-")), None)?.list();
        let (clients, rounds) = (CLIENTS.to_string(), rounds.to_string());
        let args = ["callers", "--service", service, "--clients", &clients, "--rounds", &rounds];
        let args = [&args[..], &["--groups", &own]].concat();
        let callers = RoleProcess::start(dir, &args).await?.0;
        Ok(Self { callers, _workers: workers, groups: limited })
    }

    /// Calls for `length`, and returns the utilisation of the servers meanwhile.
    async fn round(&mut self, length: Duration) -> Result<Round, String> {
        let work_ns = u64::try_from(WORK.as_nanos()).unwrap_or(u64::MAX);
        // A thousandth of a core is a million nanoseconds per second; a hundredth of that makes a percent.
        let rate = ALLOWANCES.iter().sum::<u64>() * LOAD * 10_000 / work_ns;
        let (began, before) = (Instant::now(), self.used_ns()?);
        let seen = Seen::of(&self.callers.open(rate, length).await?);
        let (elapsed, after) = (began.elapsed(), self.used_ns()?);
        let share = |server: usize| {
            let used = after[server] - before[server];
            used as f64 * 1000.0 / (elapsed.as_nanos() as f64 * ALLOWANCES[server] as f64)
        };
        Ok(Round { utilisation: [0, 1, 2].map(share), seen, length: elapsed })
    }

    fn used_ns(&self) -> Result<Vec<u64>, String> {
        self.groups.iter().map(Cgroup::used_ns).collect()
    }
}

/// Number of rounds of work that take `length` on this machine, by CPU time, which excludes other processes.
fn rounds_of(length: Duration) -> u32 {
    const SAMPLE: u32 = 2_000_000;
    let times = (0..9).map(|seed| {
        let before = process_usage::own_cpu();
        std::hint::black_box(compute(seed, SAMPLE));
        (process_usage::own_cpu() - before).as_nanos()
    });
    let mut times: Vec<_> = times.collect();
    times.sort_unstable();
    // Proof: there are nine times.
    let rounds = u128::from(SAMPLE) * length.as_nanos() / times[4].max(1);
    u32::try_from(rounds).unwrap_or(u32::MAX)
}

fn figures(rounds: &[[Round; 2]], report: &mut Report) {
    let over = |of: &dyn Fn(&[Round; 2]) -> f64| spread(rounds.iter().map(of).collect());
    let (p99, note) = over(&|[ours, theirs]| ours.p99() / theirs.p99());
    let note = format!("the busiest of three real servers, default / least request, {note}");
    report.figure(NAMES[0], p99, Some(P99_RATIO), note);
    let (cv, note) = over(&|[ours, _]| ours.cv());
    let (theirs, _) = over(&|[_, theirs]| theirs.cv());
    report.figure(NAMES[1], cv, Some(CV), format!("{note}; least request {theirs:.3}"));
    let (throttled, note) = over(&|[ours, _]| ours.throttled());
    let (theirs, _) = over(&|[_, theirs]| theirs.throttled());
    let note = format!("the throttled server's utilisation / the others', {note}; least request {theirs:.3}");
    report.figure_within(NAMES[2], throttled, THROTTLED, note);
    let (latency, note) = over(&|[ours, theirs]| ours.seen.p99 as f64 / theirs.seen.p99 as f64);
    let note = format!("p99 latency, default / least request, {note}");
    report.figure("real_latency_ratio", latency, None, note);
    report.peer("least request", "on three real servers with the same quotas");
}

/// The median, and the range as text.
fn spread(mut values: Vec<f64>) -> (f64, String) {
    values.sort_by(f64::total_cmp);
    let (Some(least), Some(most)) = (values.first(), values.last()) else { return (f64::NAN, String::new()) };
    let note = format!("median of {} rounds from {least:.3} to {most:.3}", values.len());
    (values[values.len() / 2], note)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_of(utilisation: [f64; 3]) -> Round {
        Round { utilisation, seen: Seen { calls: 1, p50: 1, p99: 1 }, length: Duration::from_secs(1) }
    }

    #[test]
    fn equally_used_servers_have_throttled_ratio_1_and_zero_variation() {
        let equal = round_of([0.5, 0.5, 0.5]);
        assert_eq!((equal.p99(), equal.throttled(), equal.cv()), (0.5, 1.0, 0.0));
        let hot = round_of([0.4, 0.4, 0.8]);
        assert_eq!((hot.p99(), hot.throttled()), (0.8, 2.0));
        assert!((hot.cv() - 0.3536).abs() < 1e-4, "{}", hot.cv());
    }

    #[test]
    fn benchmark_figure_is_median_of_its_rounds() {
        assert_eq!(spread(vec![3.0, 1.0, 2.0]), (2.0, "median of 3 rounds from 1.000 to 3.000".into()));
    }
}
