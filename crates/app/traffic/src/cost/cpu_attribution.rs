//! CPU of a service, attributed to the callers whose calls were in flight while its servers used it.

use std::{process::ExitCode, time::Duration};

use fairmesh_console::{
    arguments::Format,
    connect,
    failure::Failure,
    output::{self, Listing, ago, decimal},
};
use fairmesh_model::{CpuBy, ServiceName, write_duration};
use fairmesh_wire::v1::{CostRow, ReadCostRequest};
use serde_json::{Value, json};

use super::{CostArgs, known_window};

/// Prints the attribution of a service's CPU.
pub(super) async fn run(args: &CostArgs, service: &ServiceName, by: CpuBy) -> Result<ExitCode, Failure> {
    let connection = connect::connect(&args.target).await?;
    let request = ReadCostRequest {
        service: service.to_string(),
        by_origin: by == CpuBy::Origin,
        window_s: u32::try_from(args.window.as_secs().max(1)).unwrap_or(u32::MAX),
    };
    let response = connection.admin().read_cost(request).await?.into_inner();
    let span = known_window(args, response.history_ms);
    if span < args.window {
        output::note(format!("this control plane counts calls since {}", ago(response.history_ms)));
    }
    let total_us: u64 = response.rows.iter().map(|row| row.cpu_us).sum();
    let listing = listing(&response.rows, by, span);
    if args.output.format() == Format::Table {
        listing.print(Format::Table)?;
        output::note(format!(
            "{service} used {} s of CPU in the last {}",
            decimal(seconds(total_us), 1),
            write_duration(Duration::from_secs(span.as_secs()))
        ));
        return Ok(ExitCode::SUCCESS);
    }
    let document = json!({
        "service": service.to_string(),
        "by": name(by),
        "windowSeconds": span.as_secs(),
        "cpuSeconds": seconds(total_us),
        "rows": listing.items,
    });
    output::print_one(args.output.format(), &document, "")?;
    Ok(ExitCode::SUCCESS)
}

fn listing(rows: &[CostRow], by: CpuBy, span: Duration) -> Listing {
    let head = match by {
        CpuBy::Caller => "CALLER",
        CpuBy::Origin => "ORIGIN",
    };
    let mut listing = Listing::new(&[head, "CPU", "CORES", "SHARE"]);
    listing.why_empty =
        Some("its servers have reported no CPU: 'fairmesh imbalance' says which are measured".to_owned());
    let total_us: u64 = rows.iter().map(|row| row.cpu_us).sum();
    for row in rows {
        let share = row.cpu_us as f64 / total_us.max(1) as f64;
        let cores = if span.is_zero() { 0.0 } else { seconds(row.cpu_us) / span.as_secs_f64() };
        let cells = [
            row.user.clone(),
            format!("{} s", decimal(seconds(row.cpu_us), 1)),
            decimal(cores, 3),
            format!("{} %", decimal(share * 100.0, 1)),
        ];
        listing.add(cells.into(), item(row, by, (cores, share)));
    }
    listing
}

fn item(row: &CostRow, by: CpuBy, (cores, share): (f64, f64)) -> Value {
    json!({
        name(by): row.user,
        "cpuSeconds": seconds(row.cpu_us),
        "cores": cores,
        "share": share,
        "cpuSecondsByMinute": row.minutes_us.iter().map(|cpu_us| seconds(*cpu_us)).collect::<Vec<_>>(),
    })
}

fn name(by: CpuBy) -> &'static str {
    match by {
        CpuBy::Caller => "caller",
        CpuBy::Origin => "origin",
    }
}

fn seconds(cpu_us: u64) -> f64 {
    cpu_us as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_cost_rows_show_cores_and_shares_of_window() {
        let row =
            |user: &str, cpu_us: u64| CostRow { user: user.into(), cpu_us, minutes_us: vec![cpu_us, 0] };
        let rows = [row("shop/web", 90_000_000), row("(idle)", 30_000_000)];
        let listing = listing(&rows, CpuBy::Origin, Duration::from_secs(600));
        let shown: Vec<_> = listing.rows.iter().map(|row| row.join(" ")).collect();
        assert_eq!(shown, ["shop/web 90.0 s 0.150 75.0 %", "(idle) 30.0 s 0.050 25.0 %"]);
        assert_eq!(
            (&listing.items[0]["origin"], &listing.items[1]["share"]),
            (&json!("shop/web"), &json!(0.25))
        );
        assert_eq!(listing.items[0]["cpuSecondsByMinute"], json!([90.0, 0.0]));
    }
}
