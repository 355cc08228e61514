//! The chart: usage, limits and window ends over time.
//!
//! ```text
//!   100 ┤            ┆ window       ░░░
//!       │  ──── limit┆──────┐       ░░░ not observed
//!    30 ┤┄┄┄┄┄┄┄┄┄┄┄┄┆┄┄┄┄┄┄└──┄┄┄┄┄░░░┄ average
//!       │ ▁▂▃▂▁ used ┆▂▃▅▃▂▁        ░░░
//!     0 ┼────────────┆──────────────────
//! ```
//!
//! Equal samples give an equal file: it has no creation date.

use tidegate::budget::Rate;
use tidegate::model::Timestamp;
use tidegate_core::Zone;
use tidegate_cpu::GovernorSettings;

use super::axis_ticks::ticks;
use super::columns::{ChartColumn, ChartColumns};
use crate::cpu::format::{instant, short_rate};
use crate::svg::SvgCanvas;

/// One column per unit of the plot's width.
pub(super) const COLUMNS: u32 = RIGHT - LEFT;

/// Size of the chart.
const WIDTH: u32 = 960;
const HEIGHT: u32 = 420;
/// Plot area.
const LEFT: u32 = 60;
const RIGHT: u32 = 930;
const TOP: u32 = 96;
const BOTTOM: u32 = 366;
/// Grid lines above zero.
const LINES: u32 = 5;
/// More window ends than this are not drawn: they would cover the plot.
const MOST_ENDS: usize = 60;

const STYLE: &str = "\
text{font:12px system-ui,-apple-system,'Segoe UI',Roboto,sans-serif;fill:#57606a}\
.ground{fill:#fff}.title{font-size:16px;font-weight:600;fill:#1f2328}.head{font-weight:600}\
.grid{stroke:#d8dee4}.axis{stroke:#8c959f}.line{fill:none;stroke-width:1.5;stroke-linejoin:round}\
.used{stroke:#0969da;stroke-width:3}.used-ink{fill:#0969da}.band{fill:#0969da;opacity:.22}\
.limit{stroke:#bc4c00}.limit-ink{fill:#bc4c00}.average{stroke:#cf222e;stroke-dasharray:6 5}.average-ink{fill:#cf222e}\
.window{stroke:#8250df;stroke-dasharray:2 3}.window-ink{fill:#8250df}.dark{fill:#8c959f;opacity:.25}.dark-ink{fill:#6e7781}\
@media(prefers-color-scheme:dark){text{fill:#9198a1}.ground{fill:#0d1117}.title{fill:#f0f6fc}.grid{stroke:#262c36}\
.axis{stroke:#656c76}.used{stroke:#58a6ff}.used-ink{fill:#58a6ff}.band{fill:#58a6ff}.limit{stroke:#f0883e}\
.limit-ink{fill:#f0883e}.average{stroke:#f85149}.average-ink{fill:#f85149}.window{stroke:#a371f7}.window-ink{fill:#a371f7}\
.dark{fill:#656c76}.dark-ink{fill:#9198a1}}";

/// Draws the chart as an SVG file.
pub(super) fn draw(columns: &ChartColumns, settings: &GovernorSettings) -> String {
    let zone = settings.schedule.zone();
    let title = format!("CPU from {} to {}", instant(zone, columns.from()), instant(zone, columns.to()));
    let mut out = SvgCanvas::open([WIDTH, HEIGHT], &title, STYLE);
    out.text(LEFT, 34, "title", "start", &title);
    out.text(LEFT, 56, "", "start", &subtitle(columns, settings));
    draw_legend(&mut out);
    draw_grid(&mut out, columns, zone);
    draw_unobserved(&mut out, columns);
    window_ends(&mut out, columns, settings);
    draw_usage(&mut out, columns);
    // Usage often equals the limit. The limit is drawn last and thinner, so that both are visible.
    let y = y_of(settings.terms.average);
    out.line("average", [LEFT, y, RIGHT, y]);
    limit(&mut out, columns);
    out.close()
}

/// The summary line.
fn subtitle(columns: &ChartColumns, settings: &GovernorSettings) -> String {
    let average = short_rate(settings.terms.average);
    match columns.whole().mean() {
        Some(mean) => format!("{} used on average, {average} allowed over a window", short_rate(mean)),
        None => format!("not observed; {average} allowed over a window"),
    }
}

fn draw_legend(out: &mut SvgCanvas) {
    let y = TOP - 14;
    for (x, class, text) in [
        (0, "used-ink", "● used: mean, lowest to highest"),
        (230, "limit-ink", "━ limit"),
        (310, "average-ink", "╍ average over a window"),
        (490, "window-ink", "┆ a window ends"),
        (620, "dark-ink", "■ not observed"),
    ] {
        out.text(LEFT + x, y, &format!("head {class}"), "start", text);
    }
}

fn draw_grid(out: &mut SvgCanvas, columns: &ChartColumns, zone: &Zone) {
    for line in 0..=LINES {
        let y = BOTTOM - (BOTTOM - TOP) * line / LINES;
        out.line(if line == 0 { "axis" } else { "grid" }, [LEFT, y, RIGHT, y]);
        out.text(LEFT - 10, y + 4, "", "end", &format!("{} %", 100 / LINES * line));
    }
    for (at, label) in ticks(zone, columns.from(), columns.to()) {
        let x = x_of(columns, at);
        out.line("axis", [x, BOTTOM, x, BOTTOM + 5]);
        out.text(x, BOTTOM + 20, "", "middle", &label);
    }
    out.text(LEFT.midpoint(RIGHT), BOTTOM + 42, "", "middle", zone.name());
}

/// Shades unobserved time.
fn draw_unobserved(out: &mut SvgCanvas, columns: &ChartColumns) {
    for (x, run) in runs(columns, ChartColumn::is_mostly_unobserved) {
        out.bar("dark", [x, TOP, width(&run), BOTTOM - TOP]);
    }
}

/// Draws window ends.
fn window_ends(out: &mut SvgCanvas, columns: &ChartColumns, settings: &GovernorSettings) {
    let mut ends = Vec::new();
    let mut end = settings.schedule.window(columns.from()).end;
    while end <= columns.to() && ends.len() <= MOST_ENDS {
        ends.push(end);
        end = settings.schedule.window(end).end;
    }
    for end in ends.iter().filter(|_| ends.len() <= MOST_ENDS) {
        let x = x_of(columns, *end);
        out.line("window", [x, TOP, x, BOTTOM]);
    }
}

/// Draws the mean and the band from minimum to maximum.
fn draw_usage(out: &mut SvgCanvas, columns: &ChartColumns) {
    for (x, run) in runs(columns, |column| column.mean().is_some()) {
        let ranges = || run.iter().filter_map(|column| column.range()).zip(x..);
        let above = ranges().map(|((_, most), x)| point(x, most));
        let below = ranges().collect::<Vec<_>>().into_iter().rev().map(|((least, _), x)| point(x, least));
        out.path("band", &format!("M{}Z", above.chain(below).collect::<Vec<_>>().join("L")));
        let means = run.iter().filter_map(|column| column.mean()).zip(x..);
        // A single point is drawn as a short line.
        let mut points: Vec<_> = means.map(|(mean, x)| point(x, mean)).collect();
        points.extend(
            run.first()
                .filter(|_| run.len() == 1)
                .and_then(|column| column.mean())
                .map(|mean| point(x + 1, mean)),
        );
        out.path("line used", &format!("M{}", points.join("L")));
    }
}

/// Draws the limit as steps.
fn limit(out: &mut SvgCanvas, columns: &ChartColumns) {
    for (x, run) in runs(columns, |column| column.limit().is_some()) {
        let mut path = Vec::new();
        let mut before = None;
        for (limit, x) in run.iter().filter_map(|column| column.limit()).zip(x..) {
            let y = y_of(limit);
            match before {
                None => path.push(format!("M{x},{y}")),
                Some(before) if before != y => path.push(format!("H{x}V{y}")),
                Some(_) => {}
            }
            before = Some(y);
        }
        path.push(format!("H{}", x + width(&run)));
        out.path("line limit", &path.concat());
    }
}

/// Runs of adjacent columns that meet a condition, with their x positions.
fn runs(columns: &ChartColumns, condition: impl Fn(&ChartColumn) -> bool) -> Vec<(u32, Vec<&ChartColumn>)> {
    let mut runs: Vec<(u32, Vec<&ChartColumn>)> = Vec::new();
    let mut is_open = false;
    for (column, x) in columns.iter().zip(LEFT..) {
        let was_open = std::mem::replace(&mut is_open, condition(column));
        match runs.last_mut() {
            Some((_, run)) if is_open && was_open => run.push(column),
            _ if is_open => runs.push((x, vec![column])),
            _ => {}
        }
    }
    runs
}

fn width(run: &[&ChartColumn]) -> u32 {
    u32::try_from(run.len()).unwrap_or(COLUMNS)
}

fn point(x: u32, rate: Rate) -> String {
    format!("{x},{}", y_of(rate))
}

/// X coordinate of an instant.
fn x_of(columns: &ChartColumns, at: Timestamp) -> u32 {
    LEFT + u32::try_from(columns.index(at)).unwrap_or(COLUMNS).min(COLUMNS)
}

/// Y coordinate of a rate, capped at the top.
fn y_of(rate: Rate) -> u32 {
    let whole = u128::from(Rate::from_units(100).billionths());
    let risen = u128::from(rate.billionths()) * u128::from(BOTTOM - TOP) / whole;
    BOTTOM - u32::try_from(risen).unwrap_or(u32::MAX).min(BOTTOM - TOP)
}

#[cfg(test)]
mod tests {
    use super::super::columns::tests::samples;
    use super::*;
    use tidegate_cpu::settings::CpuSpec;

    fn drawn(rows: &[(u64, Option<u32>)]) -> String {
        let samples = samples(rows);
        let settings = GovernorSettings::of(CpuSpec::default()).expect("default settings");
        let (from, to) = (samples[0].at.wall, samples[samples.len() - 1].at.wall);
        draw(&ChartColumns::of(&samples, from, to, COLUMNS), &settings)
    }

    #[test]
    fn chart_has_all_parts_inside_the_plot_area() {
        let rows: Vec<_> = (0..5000_u64)
            .map(|number| {
                (
                    86_000 + number * 5,
                    (number % 2000 < 1500).then_some(u32::try_from(number % 101).expect("small")),
                )
            })
            .collect();
        let picture = drawn(&rows);
        for (class, count) in
            [("band", 3), ("line used", 3), ("line limit", 3), ("average", 1), ("window", 1)]
        {
            assert_eq!(picture.matches(&format!("class=\"{class}\"")).count(), count, "{class}");
        }
        assert_eq!(picture.matches("class=\"dark\"").count(), 2);
        for path in picture.lines().filter_map(|line| line.split_once(" d=\"M")) {
            let numbers = path
                .1
                .split(|letter: char| !letter.is_ascii_digit())
                .filter_map(|number| number.parse().ok());
            assert!(
                numbers
                    .into_iter()
                    .all(|number: u32| (LEFT..=RIGHT).contains(&number) || (TOP..=BOTTOM).contains(&number))
            );
        }
        assert!(picture.contains("prefers-color-scheme:dark") && picture.contains(">UTC<"));
        assert!(picture.len() < 64 * 1024, "{} bytes", picture.len());
    }

    #[test]
    fn chart_of_few_samples_is_drawn() {
        for rows in [&[(0, None)][..], &[(0, None), (5, None)], &[(0, None), (5, Some(100))]] {
            let picture = drawn(rows);
            assert!(picture.starts_with("<svg ") && picture.ends_with("</svg>\n"), "{rows:?}");
        }
    }

    /// Windows of a minute over a day would cover the plot.
    #[test]
    fn window_ends_are_drawn_unless_too_many() {
        let samples = samples(&[(0, None), (86_400, Some(5))]);
        let of = |minutes: u64| {
            let window = Some(std::time::Duration::from_secs(60 * minutes));
            let settings =
                GovernorSettings::of(CpuSpec { window, ..CpuSpec::default() }).expect("valid settings");
            let columns = ChartColumns::of(&samples, samples[0].at.wall, samples[1].at.wall, COLUMNS);
            draw(&columns, &settings).matches("class=\"window\"").count()
        };
        assert_eq!([of(1), of(30), of(360)], [0, 48, 4]);
    }
}
