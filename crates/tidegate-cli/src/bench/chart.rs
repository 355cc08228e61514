//! The chart: throughput and p99 against concurrency, and the share of decided requests per level.
//!
//! ```text
//!   decisions/s                     p99     decided
//!    │        ●───●                  │      1   ██████████ 100.00 %
//!    │   ●───●                   ○   │      4   ██████████ 100.00 %
//!    │●─○───○───○───○───○────────    │     16   ██████████ 100.00 %
//!    └─1───4───16──64──256───────────┘     64   ██████████ 100.00 %
//! ```
//!
//! The SVG is self-contained and has styles for light and dark backgrounds. Both axes start at zero and share five
//! grid lines, so that neither curve looks steeper than it is. There is no date in the file: equal numbers give an
//! equal file.

use super::number::{counted, grouped};
use super::report::{LevelReport, LoadReport, percent};
use super::target::BenchProtocol;
use crate::svg::{SvgCanvas, escaped};

/// Size of the chart.
const WIDTH: u32 = 900;
const HEIGHT: u32 = 430;
/// Plot area of the curves.
const LEFT: u32 = 76;
const RIGHT: u32 = 588;
const TOP: u32 = 116;
const BOTTOM: u32 = 362;
/// Distance of the first and last points from the edge of the plot area.
const MARGIN: u32 = 24;
/// Grid lines above zero, on both axes.
const LINES: u32 = 5;
/// Position of the bars.
const BARS_LEFT: u32 = 712;
const BARS_RIGHT: u32 = 812;
const TALLEST_BAR: u32 = 18;
/// Minimum space of axis numbers.
const WIDEST_NUMBER: u32 = 42;
const TALLEST_NUMBER: u32 = 14;

const STYLE: &str = "\
text{font:12px system-ui,-apple-system,'Segoe UI',Roboto,sans-serif;fill:#57606a}\
.ground{fill:#fff}.title{font-size:16px;font-weight:600;fill:#1f2328}.head{font-weight:600}\
.grid{stroke:#d8dee4}.axis{stroke:#8c959f}.line{fill:none;stroke-width:2.5;stroke-linejoin:round;stroke-linecap:round}\
.rate{stroke:#0969da}.rate-ink{fill:#0969da}.slow{stroke:#bc4c00;stroke-dasharray:6 5}.slow-ink{fill:#bc4c00}\
.well{fill:#1a7f37}.ill{fill:#cf222e}.ill-ink{fill:#cf222e;font-weight:600}.point{stroke:#fff;stroke-width:1.5}\
@media(prefers-color-scheme:dark){text{fill:#9198a1}.ground{fill:#0d1117}.title{fill:#f0f6fc}.grid{stroke:#262c36}\
.axis{stroke:#656c76}.rate{stroke:#58a6ff}.rate-ink{fill:#58a6ff}.slow{stroke:#f0883e}.slow-ink{fill:#f0883e}\
.well{fill:#3fb950}.ill{fill:#f85149}.ill-ink{fill:#f85149}.point{stroke:#0d1117}}";

/// Draws the report as an SVG file.
pub(super) fn draw(report: &LoadReport) -> String {
    let mut levels: Vec<&LevelReport> = report.levels.iter().collect();
    levels.sort_by_key(|level| level.concurrency);
    let mut out = SvgCanvas::open([WIDTH, HEIGHT], &format!("Load on {}", report.server), STYLE);
    out.text(LEFT, 34, "title", "start", &format!("Load on {}", report.server));
    out.text(LEFT, 56, "", "start", &asked(report));
    let verdict = report.verdict.text();
    let ink = if report.verdict.is_clean() { "" } else { "ill-ink" };
    out.text(LEFT, 74, ink, "start", verdict.lines().next().unwrap_or_default());
    out.curves(&levels);
    out.bars(&levels);
    out.close()
}

/// Protocol, pipeline depth and number of keys in one line.
fn asked(report: &LoadReport) -> String {
    let protocol = match (report.protocol, report.pipeline) {
        (BenchProtocol::Http, _) => "HTTP".to_owned(),
        (BenchProtocol::Resp, 1) => "RESP".to_owned(),
        (BenchProtocol::Resp, depth) => {
            format!("RESP, {} at once", counted(depth as u64, "request", "requests"))
        }
    };
    format!("{protocol}, {}", counted(u64::from(report.keys), "key", "keys"))
}

/// An axis from zero to [`LINES`] steps.
struct ChartAxis {
    step: u64,
}

impl ChartAxis {
    /// Chooses the smallest step of the form 1, 2 or 5 times a power of ten that covers all values.
    fn over(values: impl Iterator<Item = u64>) -> ChartAxis {
        let largest = values.max().unwrap_or_default().max(1);
        let wanted = largest.div_ceil(u64::from(LINES));
        let mut power = 1_u64;
        loop {
            for round in [1, 2, 5] {
                let step = power.saturating_mul(round);
                if step >= wanted {
                    return ChartAxis { step };
                }
            }
            power = power.saturating_mul(10);
        }
    }

    fn height(&self, value: u64) -> u32 {
        let whole = u128::from(self.step) * u128::from(LINES);
        let risen = u128::from(value) * u128::from(BOTTOM - TOP) / whole;
        BOTTOM - u32::try_from(risen).unwrap_or(0).min(BOTTOM - TOP)
    }

    fn tick(&self, line: u32) -> u64 {
        self.step * u64::from(line)
    }
}

/// X coordinate of a level, on a logarithmic scale.
fn x_of(levels: &[&LevelReport], level: &LevelReport) -> u32 {
    let number = |level: &LevelReport| f64::from(u32::try_from(level.concurrency).unwrap_or(u32::MAX));
    let (Some(first), Some(last)) = (levels.first(), levels.last()) else { return LEFT };
    let (first, last) = (number(first), number(last));
    let width = f64::from(RIGHT - LEFT - 2 * MARGIN);
    let part = if last > first { (number(level) / first).ln() / (last / first).ln() } else { 0.5 };
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a part of the width of a picture"
    )]
    let offset = (part * width).round() as u32;
    LEFT + MARGIN + offset
}

/// Short form of a large number: `12k`, `1.5M`.
fn short(number: u64) -> String {
    let (whole, unit) = match number {
        0..1_000 => return number.to_string(),
        1_000..1_000_000 => (1_000, "k"),
        1_000_000..1_000_000_000 => (1_000_000, "M"),
        _ => (1_000_000_000, "G"),
    };
    decimal(number / (whole / 10), 10) + unit
}

/// Short form of a time in microseconds.
fn time(microseconds: u64) -> String {
    match microseconds {
        0 => "0".to_owned(),
        1..1_000 => format!("{microseconds} µs"),
        1_000..1_000_000 => decimal(microseconds / 100, 10) + " ms",
        _ => decimal(microseconds / 100_000, 10) + " s",
    }
}

/// One decimal, omitted if it is zero.
fn decimal(number: u64, parts: u64) -> String {
    match number % parts {
        0 => grouped(number / parts),
        rest => format!("{}.{rest}", grouped(number / parts)),
    }
}

impl SvgCanvas {
    /// Draws throughput on the left axis and p99 on the right one.
    fn curves(&mut self, levels: &[&LevelReport]) {
        let rates = ChartAxis::over(levels.iter().map(|level| level.rate));
        let slowest = |level: &LevelReport| level.p99.div_ceil(1000);
        let times = ChartAxis::over(levels.iter().map(|level| slowest(level)));
        self.text(LEFT, TOP - 10, "head rate-ink", "start", "● decisions per second");
        self.text(RIGHT, TOP - 10, "head slow-ink", "end", "p99 ●");
        for line in 0..=LINES {
            let y = BOTTOM - (BOTTOM - TOP) * line / LINES;
            self.line(if line == 0 { "axis" } else { "grid" }, [LEFT, y, RIGHT, y]);
            self.text(LEFT - 10, y + 4, "rate-ink", "end", &short(rates.tick(line)));
            self.text(RIGHT + 10, y + 4, "slow-ink", "start", &time(times.tick(line)));
        }
        let mut free_from = LEFT;
        for level in levels {
            let x = x_of(levels, level);
            self.line("axis", [x, BOTTOM, x, BOTTOM + 5]);
            if x >= free_from {
                self.text(x, BOTTOM + 20, "", "middle", &grouped(level.concurrency as u64));
                free_from = x + WIDEST_NUMBER;
            }
        }
        self.text(LEFT.midpoint(RIGHT), BOTTOM + 42, "", "middle", "concurrent connections");
        let at = |level: &&LevelReport, y: u32| (x_of(levels, level), y);
        let slow: Vec<_> = levels.iter().map(|level| at(level, times.height(slowest(level)))).collect();
        self.curve("slow", &slow, |index| format!("p99 {}", super::milliseconds(levels[index].p99)));
        let quick: Vec<_> = levels.iter().map(|level| at(level, rates.height(level.rate))).collect();
        self.curve("rate", &quick, |index| format!("{} decisions/s", grouped(levels[index].rate)));
    }

    fn curve(&mut self, class: &str, points: &[(u32, u32)], title: impl Fn(usize) -> String) {
        let path: Vec<_> = points.iter().map(|(x, y)| format!("{x},{y}")).collect();
        self.put(&format!("<polyline class=\"line {class}\" points=\"{}\"/>\n", path.join(" ")));
        for (index, (x, y)) in points.iter().enumerate() {
            let title = escaped(&title(index));
            self.put(&format!(
                "<circle class=\"point {class}-ink\" cx=\"{x}\" cy=\"{y}\" r=\"5\"><title>{title}</title></circle>\n"
            ));
        }
    }

    /// Draws the share of decided requests per level.
    fn bars(&mut self, levels: &[&LevelReport]) {
        let width = BARS_RIGHT - BARS_LEFT;
        self.text(BARS_LEFT, TOP - 10, "head", "start", "requests decided");
        let room = (BOTTOM - TOP) / u32::try_from(levels.len().max(1)).unwrap_or(u32::MAX);
        let height = (room * 3 / 5).clamp(2, TALLEST_BAR);
        for (level, number) in levels.iter().zip(0..) {
            let middle = TOP + room.min(2 * TALLEST_BAR) * number + height / 2 + 4;
            let is_labeled = number.is_multiple_of(TALLEST_NUMBER.div_ceil(room.max(1)));
            let (y, part) = (middle - height / 2, u32::try_from(level.success).unwrap_or(0).min(10_000));
            self.bar("ill", [BARS_LEFT, y, width, height]);
            self.bar("well", [BARS_LEFT, y, width * part / 10_000, height]);
            if !is_labeled {
                continue;
            }
            self.text(BARS_LEFT - 10, middle + 4, "", "end", &grouped(level.concurrency as u64));
            let ink = if part == 10_000 { "" } else { "ill-ink" };
            self.text(BARS_RIGHT + 8, middle + 4, ink, "start", &percent(level.success));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::{level, report};
    use super::*;

    fn points(picture: &str, class: &str) -> Vec<(u32, u32)> {
        let begin = format!("<polyline class=\"line {class}\" points=\"");
        let line = picture.lines().find_map(|line| line.strip_prefix(&begin)).expect("a curve");
        let pairs = line.trim_end_matches("\"/>").split(' ');
        pairs
            .map(|pair| pair.split_once(',').expect("two"))
            .map(|(x, y)| (x.parse().unwrap(), y.parse().unwrap()))
            .collect()
    }

    #[test]
    fn curves_stay_inside_the_plot_area() {
        let levels = vec![
            level(64, 80_000, 10_000, 900_000),
            level(1, 10_000, 10_000, 100_000),
            level(8, 40_000, 9_000, 300_000),
        ];
        let picture = draw(&report(levels));
        for class in ["rate", "slow"] {
            let points = points(&picture, class);
            assert_eq!(points.len(), 3);
            assert!(points.windows(2).all(|two| two[0].0 < two[1].0 && two[0].1 > two[1].1), "{points:?}");
            assert!(points.iter().all(|(x, y)| (LEFT..=RIGHT).contains(x) && (TOP..=BOTTOM).contains(y)));
            assert_eq!(points[1].0 - points[0].0, points[2].0 - points[1].0, "8 is between 1 and 64");
        }
        assert!(picture.contains(">90.00 %<") && picture.contains(">100.00 %<"), "{picture}");
    }

    #[test]
    fn chart_of_any_number_of_levels_is_drawn() {
        for count in [0, 1, 2, 32] {
            let levels = (0..count).map(|number| level(number + 1, 0, 0, 0)).collect();
            let picture = draw(&report(levels));
            assert!(picture.starts_with("<svg ") && picture.ends_with("</svg>\n"));
            assert_eq!(picture.matches("<circle").count(), 2 * count);
        }
        draw(&report(vec![level(1, u64::MAX / 4, 10_000, u64::MAX / 8)]));
    }

    #[test]
    fn axis_numbers_do_not_overlap() {
        let picture = draw(&report((1..=32).map(|number| level(number, 9, 10_000, 9)).collect()));
        let numbers = |y: u32| {
            let line = format!("y=\"{y}\" class=\"\" text-anchor=\"middle\"");
            let found = picture.lines().filter(|each| each.contains(&line));
            found
                .map(|each| each.split('"').nth(1).expect("x").parse().expect("a number"))
                .collect::<Vec<u32>>()
        };
        let below = numbers(BOTTOM + 20);
        assert!(below.len() > 3 && below.windows(2).all(|two| two[1] - two[0] >= WIDEST_NUMBER), "{below:?}");
        assert_eq!(picture.matches("100.00 %").count(), 16);
    }

    #[test]
    fn text_in_chart_is_escaped() {
        let mut shown = report(vec![level(1, 1, 10_000, 1)]);
        "http://x/<script>&\"".clone_into(&mut shown.server);
        let picture = draw(&shown);
        assert!(picture.contains("Load on http://x/&lt;script&gt;&amp;&quot;"), "{picture}");
        assert!(!picture.contains("<script") && picture.contains("prefers-color-scheme:dark"));
        assert_eq!(picture, draw(&shown));
    }

    #[test]
    fn axis_steps_are_round() {
        for (largest, step) in [(0, 1), (5, 1), (6, 2), (99, 20), (101, 50), (1_000_000, 200_000)] {
            assert_eq!(ChartAxis::over([largest].into_iter()).step, step, "{largest}");
        }
        assert_eq!([short(999), short(20_000), short(1_500), short(2_000_000)], ["999", "20k", "1.5k", "2M"]);
        assert_eq!([time(0), time(500), time(1_500), time(2_000_000)], ["0", "500 µs", "1.5 ms", "2 s"]);
    }
}
