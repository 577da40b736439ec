//! A report as text.

use std::fmt::Write;

use super::Report;
use super::numbers::Summary;

/// The report's tables, without the timelines.
pub(super) fn text(report: &Report) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = write(&mut text, report);
    text
}

fn write(out: &mut String, report: &Report) -> std::fmt::Result {
    let shares = report.requests.iter().map(|request| request.accounted);
    let least = shares.clone().fold(1.0, f64::min);
    let mean = shares.sum::<f64>() / report.requests.len().max(1) as f64;
    writeln!(
        out,
        "{} requests; named parts account for {:.1} % of their time on average, {:.1} % at least",
        report.request_count,
        mean * 100.0,
        least * 100.0
    )?;
    if report.skipped_lines > 0 {
        writeln!(out, "{} lines are no events and were skipped", report.skipped_lines)?;
    }

    writeln!(out, "\n{:<12} {:<16} {HEADINGS}  from->to", "stage", "part")?;
    for row in &report.stage_breakdown {
        writeln!(out, "{:<12} {:<16} {}  {}", row.stage.as_str(), row.name, numbers(&row.summary), row.interval)?;
    }

    writeln!(out, "\n{:<12} {:<12} {:<13} {HEADINGS}", "hop from", "to", "kind")?;
    for row in &report.hop_breakdown {
        writeln!(out, "{:<12} {:<12} {:<13} {}", row.src, row.dst, row.kind, numbers(&row.summary))?;
    }

    let denoise = &report.denoise_breakdown;
    writeln!(out, "\n{:<16} {HEADINGS}", "part of a step")?;
    for row in &denoise.parts {
        writeln!(out, "{:<16} {}", row.part, numbers(&row.summary))?;
    }
    writeln!(
        out,
        "requests in a step {:.1}, rows {:.1}; tokens in a request's forward {:.2}; steps of a block {:.2}",
        denoise.requests_per_step, denoise.rows_per_step, denoise.tokens_per_forward, denoise.steps_per_block
    )?;

    writeln!(out, "\n{:<44} {:>10} {:>10} {:>8} {:>8}", "request", "wall ms", "accounted", "forwards", "tokens")?;
    for request in &report.requests {
        writeln!(
            out,
            "{:<44} {:>10.2} {:>8.1} % {:>8} {:>8}",
            request.request_id,
            request.wall_ms,
            request.accounted * 100.0,
            request.forwards,
            request.accepted
        )?;
    }
    Ok(())
}

const HEADINGS: &str = "   count   total ms     avg ms     p50 ms     p95 ms     max ms";

fn numbers(summary: &Summary) -> String {
    let Summary { count, total_ms, avg_ms, p50_ms, p95_ms, max_ms } = summary;
    format!("{count:>8} {total_ms:>10.2} {avg_ms:>10.3} {p50_ms:>10.3} {p95_ms:>10.3} {max_ms:>10.3}")
}
