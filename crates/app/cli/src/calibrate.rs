//! `fairmesh calibrate`: the speed of this machine relative to the reference machine.
//!
//! Speed stands for instructions per cycle times frequency (Uber, zone weights), because the processor's counters are
//! hidden in most virtual machines. A timed benchmark predicts a service's throughput less well than measuring the
//! service, but takes only two seconds.

mod processor;
mod timed_work;

use std::{process::ExitCode, thread, time::Duration};

use clap::Args;
use fairmesh_console::{
    arguments::{Format, OutputArgs, TargetArgs},
    connect,
    failure::Failure,
    output,
    view_reader::{At, ReadView, View},
};
use fairmesh_model::{
    FULL_SPEED, HostType, Hosts, Record, RecordKey,
    spec::{Document, Resource},
};
use fairmesh_wire::{
    record_encoding,
    v1::{ApplyRequest, Condition, Op, condition},
};
use serde_json::json;

/// CPU time of one round on the reference machine: a virtual machine of two cores on an "Intel(R) Xeon(R) Processor",
/// otherwise idle, in November 2026. Only ratios matter, so the choice of the machine is arbitrary.
const REFERENCE_TIME: Duration = Duration::from_micros(90_000);
/// Number of timed rounds. The first does not count, because it only fills the caches.
const ROUNDS: usize = 20;
/// Maximum excess of the median over the fastest round for a result to be trusted, in thousandths.
const MAX_SPREAD: u128 = 50;
/// Minimum idle time of the core before the measurement, in thousandths.
const MIN_IDLE: u64 = 800;

/// Arguments of `fairmesh calibrate`.
#[derive(Debug, Args)]
pub struct CalibrateArgs {
    /// Host type of machines like this one [default: derived from the processor's name].
    #[arg(long, value_name = "NAME")]
    host_type: Option<HostType>,
    /// Write the record, with this host type added, instead of only proposing it.
    #[arg(long)]
    apply: bool,
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    output_args: OutputArgs,
}

/// Result of a measurement.
struct Measured {
    core: usize,
    /// Idle time of the core before the measurement, in thousandths.
    idle: u64,
    fastest: Duration,
    median: Duration,
}

/// Explains how endpoints get this host type.
fn usage_hint(host_type: &HostType) -> String {
    format!(
        "It counts for endpoints that name it: start the agents of such machines with '--host-type {host_type}', or add their \
         addresses to the record's 'prefixes'."
    )
}

/// Measures, and proposes or writes.
pub async fn run(args: CalibrateArgs) -> Result<ExitCode, Failure> {
    let model = processor::cpu_model().unwrap_or_else(|| "unknown".into());
    let host_type = args.host_type.clone().map_or_else(|| host_type_of(&model), Ok)?;
    let measured = tokio::task::spawn_blocking(measure).await.map_err(Failure::failed)??;
    let doubts = measured.doubts();
    for doubt in &doubts {
        output::warn(doubt);
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
        write(&args.target, &stored, &hosts).await?;
    }
    let proposal = output::yaml(&Document::from(&Resource::Hosts(hosts)))?;
    let text = format!(
        "processor  {model}\ncore       {}, {} % idle before\nrounds     {ROUNDS}, fastest {:?}, median {:?} of processor time\n\
         speed      {speed} ({FULL_SPEED} is the reference)\n\n{}\n{proposal}# {}\n",
        measured.core,
        measured.idle / 10,
        measured.fastest,
        measured.median,
        if args.apply { "# Applied:" } else { "# To apply:" },
        usage_hint(&host_type),
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
    match args.output_args.format() {
        Format::Yaml => output::write(&proposal)?,
        format => output::print_one(format, &item, &text)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Times the work on the idlest core.
fn measure() -> Result<Measured, Failure> {
    let (core, idle) = processor::idlest_core().map_err(unmeasurable)?;
    // In a thread of its own, since the affinity would affect other work.
    let timed = thread::spawn(move || {
        processor::pin_to_core(core).map_err(unmeasurable)?;
        let mut table = timed_work::table();
        (0..=ROUNDS).map(|_| round(&mut table)).collect::<Result<Vec<_>, _>>()
    });
    let mut times = timed.join().map_err(|_| Failure::failed("the measurement was interrupted"))??;
    times.remove(0);
    times.sort();
    Ok(Measured { core, idle, fastest: times[0], median: times[ROUNDS / 2] })
}

/// CPU time of one round. Other processes disturb it less than wall-clock time.
fn round(table: &mut [u64]) -> Result<Duration, Failure> {
    let start = processor::processor_time();
    if timed_work::round(table) != timed_work::RESULT {
        return Err(Failure::failed("this machine computes wrong results; take it out of service"));
    }
    Ok(processor::processor_time() - start)
}

fn unmeasurable(error: std::io::Error) -> Failure {
    Failure::failed_with(
        format!("cannot read the core statistics of this machine: {error}"),
        "calibrate on Linux, where /proc is mounted and the process may choose its core",
    )
}

impl Measured {
    /// Speed in thousandths of the reference machine's, from the fastest round, which was disturbed least.
    fn speed(&self) -> u32 {
        let speed = REFERENCE_TIME.as_nanos() * u128::from(FULL_SPEED) / self.fastest.as_nanos().max(1);
        u32::try_from(speed).unwrap_or(u32::MAX)
    }

    /// Returns the reasons not to trust the result.
    fn doubts(&self) -> Vec<String> {
        let mut doubts = Vec::new();
        if cfg!(debug_assertions) {
            doubts
                .push("this binary was built without optimisation, so that the speed is far too low".into());
        }
        if self.idle < MIN_IDLE {
            doubts.push(format!(
                "core {} was only {} % idle; measure while the machine has little to do",
                self.core,
                self.idle / 10
            ));
        }
        let spread =
            self.median.saturating_sub(self.fastest).as_nanos() * 1000 / self.fastest.as_nanos().max(1);
        if spread > MAX_SPREAD {
            doubts.push(format!("the median round took {}.{} % longer than the fastest, so that something else disturbs; measure again", spread / 10, spread % 10));
        }
        doubts
    }
}

/// Derives a host type from a processor's name: `Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz` becomes
/// `intel-xeon-platinum-8481c`.
fn host_type_of(model: &str) -> Result<HostType, Failure> {
    let model = model.split('@').next().unwrap_or_default().to_lowercase();
    let model = model.replace("(r)", " ").replace("(tm)", " ");
    let words = model.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    let words: Vec<_> = words.filter(|word| !matches!(*word, "cpu" | "processor")).collect();
    let name: String = words.join("-").chars().take(40).collect();
    HostType::new(name.trim_end_matches('-')).map_err(|_| {
        Failure::refused("no host type can be derived from the processor's name", "write --host-type NAME")
    })
}

/// Reads the stored record. Without a control plane, the proposal contains only the new host type.
async fn stored(args: &CalibrateArgs) -> Result<At<Hosts>, Failure> {
    match connect::connect(&args.target).await {
        Ok(connection) => Ok(View::topology(&connection).await?.hosts),
        Err(failure) if args.apply => Err(failure),
        Err(_) => {
            let addresses: Vec<_> = args.target.addresses().iter().map(ToString::to_string).collect();
            output::warn(format!(
                "no control plane responds at {}, so that this record has no other host types; applying it removes them",
                addresses.join(", ")
            ));
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

/// Writes the record unless it has changed meanwhile: several machines of a fleet may be calibrated concurrently.
async fn write(target: &TargetArgs, stored: &At<Hosts>, hosts: &Hosts) -> Result<(), Failure> {
    let condition = match stored.revision {
        0 => condition::Kind::Absent(true),
        revision => condition::Kind::Revision(revision),
    };
    let op = Op {
        key: RecordKey::Hosts.to_string(),
        value: Some(record_encoding::encode(&Record::Hosts(hosts.clone()))),
        condition: Some(Condition { kind: Some(condition) }),
    };
    let connection = connect::connect(target).await?;
    connection.admin().apply(ApplyRequest { ops: vec![op], dry_run: false, ..Default::default() }).await?;
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
    fn calibration_work_computes_its_expected_result() {
        assert_eq!(timed_work::round(&mut timed_work::table()), timed_work::RESULT);
    }

    #[test]
    fn halved_calibration_time_doubles_measured_host_speed() {
        let reference = REFERENCE_TIME.as_micros() as u64;
        assert_eq!(measured(reference, reference, 1000).speed(), FULL_SPEED);
        assert_eq!(measured(reference / 2, reference, 1000).speed(), 2 * FULL_SPEED);
    }

    #[test]
    fn calibration_on_noisy_machine_is_doubted() {
        let usual = usize::from(cfg!(debug_assertions));
        assert_eq!(measured(1000, 1050, 800).doubts().len(), usual);
        assert_eq!(measured(1000, 1052, 800).doubts().len(), usual + 1);
        assert_eq!(measured(1000, 1000, 799).doubts().len(), usual + 1);
    }

    #[test]
    fn host_type_is_named_after_processor() {
        let name = |model| host_type_of(model).map(|name| name.to_string()).ok();
        assert_eq!(
            name("Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz").as_deref(),
            Some("intel-xeon-platinum-8481c")
        );
        assert_eq!(name("AMD EPYC 7B13").as_deref(), Some("amd-epyc-7b13"));
        assert_eq!(name("???"), None);
    }
}
