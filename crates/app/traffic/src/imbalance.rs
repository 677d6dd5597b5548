//! `fairmesh imbalance`: cores wasted by uneven load, with their causes.

use std::process::ExitCode;

use clap::Args;
use fairmesh_console::{
    arguments::{Format, OutputArgs, TargetArgs},
    connect,
    failure::Failure,
    output,
    view_reader::{ReadView, Scope, View as Records, every_kind},
};
use fairmesh_imbalance::{
    Area, Breakdown, Causes, Figures, ImbalanceReport, Line, Measure, Outlier, OutlierView, ServiceOutlier,
    View, read_window,
};
use fairmesh_model::{HostType, InstanceId, Invalid, ServiceName};
use fairmesh_wire::v1;

/// Maximum number of outliers of one host type that a table names.
const MAX_NAMED: usize = 3;

/// Arguments of `fairmesh imbalance`.
#[derive(Debug, Args)]
pub struct ImbalanceArgs {
    /// Only this service, as tenant/service [default: all].
    service: Option<ServiceName>,
    /// Grouping: service, region, zone, cluster, host-type, hour, day or cause.
    #[arg(long, value_parser = by, default_value = "service")]
    by: Breakdown,
    /// Time window: a number and m, h or d [default: 1h; 1d by hour, 14d by day]. Beyond 6h it is rounded to hours,
    /// beyond 14d to days (UTC).
    #[arg(long, value_parser = read_window)]
    window: Option<u32>,
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    output_args: OutputArgs,
}

fn by(text: &str) -> Result<Breakdown, String> {
    Breakdown::named(text).ok_or_else(|| {
        let names: Vec<_> = Breakdown::ALL.iter().map(|by| by.name()).collect();
        format!("write one of {}", names.join(", "))
    })
}

/// Prints the imbalance figures of the control plane.
pub async fn run(args: ImbalanceArgs) -> Result<ExitCode, Failure> {
    let connection = connect::connect(&args.target).await?;
    let request = v1::ReadImbalanceRequest {
        service: args.service.as_ref().map(ToString::to_string).unwrap_or_default(),
        by: args.by.name().into(),
        window_minutes: args.window.unwrap_or_default(),
    };
    let answer = connection.imbalance().read(request).await?.into_inner();
    let view = report(args.by, answer)?.view();
    if let Some(name) = args.service.as_ref().filter(|_| view.total.containers <= 0.0) {
        // A deleted service may have figures; one without figures must exist.
        Records::read(&connection, &Scope::Service(name.clone()), &every_kind()).await?.service(name)?;
    }
    let format = args.output_args.format();
    if format == Format::Table && view.minutes == 0 {
        output::note(
            "there are no figures for this time: servers report through their agents within half a minute",
        );
        return Ok(ExitCode::SUCCESS);
    }
    output::print_one(format, &view, &text(&view))?;
    Ok(ExitCode::SUCCESS)
}

fn report(by: Breakdown, answer: v1::ReadImbalanceResponse) -> Result<ImbalanceReport, Invalid> {
    let lines = answer.lines.into_iter().map(|line| Line {
        name: line.name,
        minutes: if line.minutes == 0 { answer.minutes } else { line.minutes },
        area: area(line.area),
        own_peak: line.own_peak_millicore_minutes,
        causes: line.causes.map(causes),
    });
    Ok(ImbalanceReport {
        by,
        minutes: answer.minutes,
        lines: lines.collect(),
        total: area(answer.total),
        causes: causes(answer.causes.unwrap_or_default()),
        outliers: answer.outliers.into_iter().map(outlier_text).collect::<Result<_, _>>()?,
        newest: None,
    })
}

fn causes(causes: v1::Causes) -> Causes {
    Causes {
        regions: causes.regions,
        host_types: causes.host_types,
        within: causes.within,
        unknown: causes.unknown,
    }
}

fn area(area: Option<v1::Area>) -> Area {
    let area = area.unwrap_or_default();
    Area {
        containers: area.container_minutes,
        used: area.used_millicore_minutes,
        peak: area.peak_millicore_minutes,
    }
}

fn outlier_text(outlier: v1::ImbalanceOutlier) -> Result<ServiceOutlier, Invalid> {
    let by = if outlier.per_request { Measure::CpuPerRequest } else { Measure::Cpu };
    Ok(ServiceOutlier {
        service: ServiceName::new(outlier.service)?,
        host_type: HostType::new(outlier.host_type)?,
        outlier: Outlier { instance: InstanceId::new(outlier.instance)?, off: outlier.off, by },
    })
}

/// The figures as a table.
fn text(view: &View) -> String {
    if view.by == Breakdown::Cause.name() {
        return causes_text(view);
    }
    let types = view.by == Breakdown::named("host-type").unwrap_or_default().name();
    let mut head = vec![title(view.by), "CONTAINERS", "USED", "P99", "MEAN", "WASTED", "INDEX", "OWN INDEX"];
    if types {
        head.push("OUTLIERS");
    }
    let rows = view.lines.iter().chain([&view.total]).map(|line| {
        let mut row = row(line);
        if types {
            row.push(outliers(&view.outliers, &line.name));
        }
        row
    });
    output::table(&head, &rows.collect::<Vec<_>>()) + &closing(view)
}

fn title(by: &'static str) -> &'static str {
    match by {
        "region" => "REGION",
        "zone" => "ZONE",
        "cluster" => "CLUSTER",
        "host-type" => "HOST TYPE",
        "hour" => "HOUR (UTC)",
        "day" => "DAY (UTC)",
        _ => "SERVICE",
    }
}

/// Formats cores with significant digits: thousands of cores without a fraction, hundredths of a core with three
/// decimals.
fn cores(cores: f64) -> String {
    let places = match cores.abs() {
        1000.0.. => 0,
        100.0.. => 1,
        0.1.. | 0.0 => 2,
        _ => 3,
    };
    format!("{cores:.places$}")
}

fn row(line: &Figures) -> Vec<String> {
    let index = |index: f64| format!("{index:.2}");
    vec![
        line.name.clone(),
        format!("{:.1}", line.containers),
        cores(line.used_cores),
        cores(line.p99_cores),
        cores(line.mean_cores),
        cores(line.wasted_cores),
        line.index.map_or("-".into(), index),
        line.own_index.map_or("-".into(), index),
    ]
}

fn outliers(all: &[OutlierView], host_type: &str) -> String {
    let own: Vec<_> = all.iter().filter(|outlier| outlier.host_type == host_type).collect();
    let named = own.iter().take(MAX_NAMED).map(|outlier| {
        let OutlierView { service, instance, off, .. } = outlier;
        format!("{service} {instance} {:+.0} %", off * 100.0)
    });
    let mut text = named.collect::<Vec<_>>().join(", ");
    if own.len() > MAX_NAMED {
        text += &format!(" and {} more", own.len() - MAX_NAMED);
    }
    text
}

fn causes_text(view: &View) -> String {
    let rows = view.causes.iter().map(|cause| {
        let share = cause.share.map_or("-".into(), |share| format!("{:.0} %", share * 100.0));
        vec![cause.name.to_owned(), cores(cause.wasted_cores), share]
    });
    output::table(&["CAUSE", "WASTED", "SHARE"], &rows.collect::<Vec<_>>()) + &closing(view)
}

fn closing(view: &View) -> String {
    let minutes = if view.minutes == 1 { "1 minute".into() } else { format!("{} minutes", view.minutes) };
    format!("cores on average over {minutes}; {} wasted in all\n", cores(view.total.wasted_cores))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer() -> v1::ReadImbalanceResponse {
        let area = |containers, used, peak| v1::Area {
            container_minutes: containers,
            used_millicore_minutes: used,
            peak_millicore_minutes: peak,
        };
        let line = |name: &str, area: v1::Area, own| v1::ImbalanceLine {
            name: name.into(),
            area: Some(area),
            own_peak_millicore_minutes: own,
            minutes: 0,
            causes: None,
        };
        let outlier = |instance: &str| v1::ImbalanceOutlier {
            service: "shop/cart".into(),
            host_type: "old".into(),
            instance: instance.into(),
            off: 386,
            per_request: true,
        };
        v1::ReadImbalanceResponse {
            by: "host-type".into(),
            minutes: 2,
            lines: vec![line("old", area(20, 80_000, 100_000), 96_000), line("new", area(4, 0, 0), 0)],
            total: Some(area(24, 80_000, 100_000)),
            causes: Some(v1::Causes { regions: 0, host_types: 4_000, within: 16_000, unknown: 0 }),
            outliers: ["a", "b", "c", "d"].map(outlier).into(),
        }
    }

    #[test]
    fn imbalance_table_has_averages_total_and_worst_outliers() {
        let view = report(Breakdown::named("host-type").unwrap(), answer()).unwrap().view();
        let text = text(&view);
        let lines: Vec<Vec<_>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[1][..8], ["old", "10.0", "40.00", "5.00", "4.00", "10.00", "1.25", "1.20"]);
        assert!(
            text.contains("shop/cart a +39 %, shop/cart b +39 %, shop/cart c +39 % and 1 more"),
            "{text}"
        );
        assert_eq!(lines[2][..8], ["new", "2.0", "0.00", "0.00", "0.00", "0.00", "-", "-"]);
        assert_eq!(lines[3][..6], ["total", "12.0", "40.00", "4.17", "3.33", "10.00"]);
        assert!(text.ends_with("cores on average over 2 minutes; 10.00 wasted in all\n"), "{text}");
    }

    #[test]
    fn imbalance_table_prints_cores_with_significant_digits() {
        let shown = [0.0, 0.0042, 0.25, 10.0, 123.456, 98_765.4].map(cores);
        assert_eq!(shown, ["0.00", "0.004", "0.25", "10.00", "123.5", "98765"]);
    }

    #[test]
    fn imbalance_causes_are_shown_with_shares() {
        let text = text(&report(Breakdown::Cause, answer()).unwrap().view());
        assert!(
            text.contains("between host types") && text.contains("20 %") && text.contains("80 %"),
            "{text}"
        );
    }
}
