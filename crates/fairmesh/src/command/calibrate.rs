//! `fairmesh calibrate`: how fast this machine is, beside the reference.
//!
//! It stands for instructions per cycle times frequency (Uber, zone weights) where the counters of the processor are hidden, as in most
//! virtual machines. A benchmark that is timed says less than the service's own throughput would, and asks for nothing
//! but two seconds.

mod machine;
mod work;

use std::{process::ExitCode, thread, time::Duration};

use clap::Args;
use fairmesh_model::{
    FULL_SPEED, HostType, Hosts, Record, RecordKey,
    spec::{Document, Plan},
};
use fairmesh_wire::{
    records,
    v1::{ApplyRequest, Condition, Op, condition},
};
use serde_json::json;

use crate::{
    cli::{Format, Reach, SeenAs},
    connect,
    failure::Failure,
    output,
    view::{At, View},
};

/// The processor time of one round on the machine that counts as ordinary: a virtual machine of two cores on an "Intel(R)
/// Xeon(R) Processor", otherwise idle, in November 2026. Only ratios matter: any other machine would have done.
const REFERENCE: Duration = Duration::from_micros(90_000);
/// How often the work is timed; the first, which fills the caches, does not count.
const ROUNDS: usize = 20;
/// By how many thousandths the median may lie above the fastest round before the result is not trusted.
const STEADY: u128 = 50;
/// How many thousandths of the time the core had to be idle before.
const IDLE: u64 = 800;

/// Arguments of `fairmesh calibrate`.
#[derive(Debug, Args)]
pub(crate) struct CalibrateArgs {
    /// What machines like this one are called [default: made of the processor's name].
    #[arg(long, value_name = "NAME")]
    host_type: Option<HostType>,
    /// Write the record, with this host type added, instead of only proposing it.
    #[arg(long)]
    apply: bool,
    #[command(flatten)]
    reach: Reach,
    #[command(flatten)]
    seen_as: SeenAs,
}

/// What was measured.
struct Measured {
    core: usize,
    /// Thousandths of the time before.
    idle: u64,
    fastest: Duration,
    median: Duration,
}

/// How a type comes to count.
fn used_by(host_type: &HostType) -> String {
    format!(
        "It counts for endpoints that name it: start the agents of such machines with '--host-type {host_type}', or add their \
         addresses to the record's 'prefixes'."
    )
}

/// Measures, and proposes or writes.
pub(crate) async fn run(args: CalibrateArgs) -> Result<ExitCode, Failure> {
    let model = machine::cpu_model().unwrap_or_else(|| "unknown".into());
    let host_type = args.host_type.clone().map_or_else(|| named_after(&model), Ok)?;
    let measured = tokio::task::spawn_blocking(measure).await.map_err(Failure::failed)??;
    let doubts = measured.doubts();
    for doubt in &doubts {
        eprintln!("warning: {doubt}");
    }
    if args.apply && !doubts.is_empty() {
        return Err(Failure::failed_with(
            "the measurement is not trusted, so nothing was written",
            "measure again on a quieter machine, or apply the record that 'fairmesh calibrate' proposes",
        ));
    }
    let speed = measured.speed();
    let stored = stored(&args).await?;
    let hosts = with(&stored.value, &host_type, speed)?;
    if args.apply {
        write(&args.reach, &stored, &hosts).await?;
    }
    let proposal = output::yaml(&Document::from(&Plan::Hosts(hosts)))?;
    let text = format!(
        "processor  {model}\ncore       {}, {} % idle before\nrounds     {ROUNDS}, fastest {:?}, median {:?} of processor time\n\
         speed      {speed} ({FULL_SPEED} is the reference)\n\n{}\n{proposal}# {}\n",
        measured.core,
        measured.idle / 10,
        measured.fastest,
        measured.median,
        if args.apply { "# Applied:" } else { "# To apply:" },
        used_by(&host_type),
    );
    let item = json!({
        "hostType": host_type.to_string(),
        "speed": speed,
        "trusted": doubts.is_empty(),
        "doubts": doubts,
        "processor": model,
        "core": measured.core,
        "idleThousandths": measured.idle,
        "fastestMicros": measured.fastest.as_micros() as u64,
        "medianMicros": measured.median.as_micros() as u64,
        "applied": args.apply,
    });
    match args.seen_as.format() {
        Format::Yaml => output::write(&proposal)?,
        format => output::print_one(format, &item, &text)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Times the work on the idlest core.
fn measure() -> Result<Measured, Failure> {
    let (core, idle) = machine::idlest_core().map_err(unmeasurable)?;
    // A thread of its own, so that no other work stays tied to the core.
    let timed = thread::spawn(move || {
        machine::stay_on(core).map_err(unmeasurable)?;
        let mut table = work::table();
        (0..=ROUNDS).map(|_| round(&mut table)).collect::<Result<Vec<_>, _>>()
    });
    let mut times = timed.join().map_err(|_| Failure::failed("the measurement broke off"))??;
    times.remove(0);
    times.sort();
    Ok(Measured { core, idle, fastest: times[0], median: times[ROUNDS / 2] })
}

/// Whoever watches the processor time and not the clock is little disturbed by what else runs.
fn round(table: &mut [u64]) -> Result<Duration, Failure> {
    let start = machine::processor_time();
    if work::round(table) != work::RESULT {
        return Err(Failure::failed("this machine computes wrongly; take it out of service"));
    }
    Ok(machine::processor_time() - start)
}

fn unmeasurable(error: std::io::Error) -> Failure {
    Failure::failed_with(
        format!("cannot watch the cores of this machine: {error}"),
        "calibrate on Linux, where /proc is mounted and the process may choose its core",
    )
}

impl Measured {
    /// Thousandths of the reference: the fastest round is the least disturbed one.
    fn speed(&self) -> u32 {
        let speed = REFERENCE.as_nanos() * u128::from(FULL_SPEED) / self.fastest.as_nanos().max(1);
        u32::try_from(speed).unwrap_or(u32::MAX)
    }

    /// Why not to trust it.
    fn doubts(&self) -> Vec<String> {
        let mut doubts = Vec::new();
        if cfg!(debug_assertions) {
            doubts
                .push("this binary was built without optimisation, so that the speed is far too low".into());
        }
        if self.idle < IDLE {
            doubts.push(format!(
                "core {} was only {} % idle; measure while the machine has little to do",
                self.core,
                self.idle / 10
            ));
        }
        let spread =
            self.median.saturating_sub(self.fastest).as_nanos() * 1000 / self.fastest.as_nanos().max(1);
        if spread > STEADY {
            doubts.push(format!("the median round took {}.{} % longer than the fastest, so that something else disturbs; measure again", spread / 10, spread % 10));
        }
        doubts
    }
}

/// `Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz` becomes `intel-xeon-platinum-8481c`.
fn named_after(model: &str) -> Result<HostType, Failure> {
    let model = model.split('@').next().unwrap_or_default().to_lowercase();
    let model = model.replace("(r)", " ").replace("(tm)", " ");
    let words = model.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    let words: Vec<_> = words.filter(|word| !matches!(*word, "cpu" | "processor")).collect();
    let name: String = words.join("-").chars().take(40).collect();
    HostType::new(name.trim_end_matches('-')).map_err(|_| {
        Failure::refused(
            "the processor has no name that could be one of a host type",
            "write --host-type NAME",
        )
    })
}

/// The record that is there. A proposal can be made without a control plane, and then holds this host type alone.
async fn stored(args: &CalibrateArgs) -> Result<At<Hosts>, Failure> {
    match connect::connect(&args.reach).await {
        Ok(connection) => Ok(View::topology(&connection).await?.hosts),
        Err(failure) if args.apply => Err(failure),
        Err(_) => {
            eprintln!(
                "warning: no control plane answers at {}, so that this record has no other host types; applying it takes them out",
                args.reach.control
            );
            Ok(At::default())
        }
    }
}

fn with(stored: &Hosts, host_type: &HostType, speed: u32) -> Result<Hosts, Failure> {
    let mut speeds = stored.speeds().clone();
    speeds.insert(host_type.clone(), speed);
    Hosts::new(speeds, stored.prefixes().to_vec())
        .map_err(|invalid| Failure::failed_with(invalid.problem, invalid.hint))
}

/// Writes the record, unless somebody else has changed it since: machines of a fleet may well calibrate at the same time.
async fn write(reach: &Reach, stored: &At<Hosts>, hosts: &Hosts) -> Result<(), Failure> {
    let condition = match stored.revision {
        0 => condition::Kind::Absent(true),
        revision => condition::Kind::Revision(revision),
    };
    let op = Op {
        key: RecordKey::Hosts.to_string(),
        value: Some(records::encode(&Record::Hosts(hosts.clone()))),
        condition: Some(Condition { kind: Some(condition) }),
    };
    let connection = connect::connect(reach).await?;
    connection.admin().apply(ApplyRequest { ops: vec![op], dry_run: false }).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(fastest: u64, median: u64, idle: u64) -> Measured {
        let [fastest, median] = [fastest, median].map(Duration::from_micros);
        Measured { core: 0, idle, fastest, median }
    }

    #[test]
    fn the_work_comes_to_its_result() {
        assert_eq!(work::round(&mut work::table()), work::RESULT);
    }

    #[test]
    fn half_the_time_is_twice_the_speed() {
        let reference = REFERENCE.as_micros() as u64;
        assert_eq!(measured(reference, reference, 1000).speed(), FULL_SPEED);
        assert_eq!(measured(reference / 2, reference, 1000).speed(), 2 * FULL_SPEED);
    }

    #[test]
    fn a_noisy_machine_is_not_trusted() {
        let usual = usize::from(cfg!(debug_assertions));
        assert_eq!(measured(1000, 1050, 800).doubts().len(), usual);
        assert_eq!(measured(1000, 1052, 800).doubts().len(), usual + 1);
        assert_eq!(measured(1000, 1000, 799).doubts().len(), usual + 1);
    }

    #[test]
    fn a_host_type_is_named_after_the_processor() {
        let name = |model| named_after(model).map(|name| name.to_string()).ok();
        assert_eq!(
            name("Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz").as_deref(),
            Some("intel-xeon-platinum-8481c")
        );
        assert_eq!(name("AMD EPYC 7B13").as_deref(), Some("amd-epyc-7b13"));
        assert_eq!(name("???"), None);
    }
}
