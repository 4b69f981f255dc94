//! Draws which boxes use which, lower layers below, as SVG.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use crate::imports::circles;

const WIDTH: i64 = 210;
const GAP: i64 = 24;
const BETWEEN: i64 = 56;
const LINE: i64 = 15;
const MARGIN: i64 = 20;
/// Letters of the small font in the width of a box.
const LETTERS: usize = 32;

/// The drawing of boxes that use those of `edges`; under a box's name stand its `parts`. Edges of circles are red, those that are a
/// way over other boxes as well are pale.
pub fn draw(edges: &BTreeMap<String, BTreeSet<String>>, parts: &BTreeMap<String, Vec<String>>) -> String {
    let groups = circles(edges);
    let group = |name: &String| groups.iter().position(|group| group.contains(name)).unwrap_or_default();
    let ranks = ranks(edges, &groups);
    let count = ranks.iter().max().map_or(0, |most| most + 1);
    let text: BTreeMap<&String, Vec<String>> =
        edges.keys().map(|name| (name, wrapped(parts.get(name).map_or(&[], Vec::as_slice)))).collect();
    let height = |name: &String| 28 + LINE * i64::try_from(text[name].len()).unwrap_or(0);
    let rows: Vec<Vec<&String>> = (0..count)
        .rev()
        .map(|rank| edges.keys().filter(|name| ranks[group(name)] == rank).collect())
        .collect();
    let most = rows.iter().map(Vec::len).max().unwrap_or(0);
    let wide = |boxes: usize| i64::try_from(boxes).unwrap_or(0) * (WIDTH + GAP) - GAP;
    let mut places = BTreeMap::new();
    let mut top = MARGIN;
    for row in &rows {
        let left = MARGIN + (wide(most) - wide(row.len())) / 2;
        for (at, name) in row.iter().enumerate() {
            places.insert(*name, (left + wide(at + 1) + GAP - WIDTH - GAP, top));
        }
        top += row.iter().map(|name| height(name)).max().unwrap_or(0) + BETWEEN;
    }
    let (right, bottom) = (wide(most) + 2 * MARGIN, top - BETWEEN + MARGIN);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {right} {bottom}\" font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"{right}\" height=\"{bottom}\" fill=\"white\"/>\n"
    );
    // Those that matter most are drawn last.
    for wanted in ["#d5dae1", "#48566a", "#c62828"] {
        for (from, to) in edges.iter().flat_map(|(from, to)| to.iter().map(move |to| (from, to))) {
            let (Some((x, y)), Some((to_x, to_y))) = (places.get(from), places.get(to)) else { continue };
            let is_circle = group(from) == group(to);
            let is_far = edges[from].iter().any(|over| over != to && reaches(edges, over, to));
            let color = match (is_circle, is_far) {
                (true, _) => "#c62828",
                (false, true) => "#d5dae1",
                (false, false) => "#48566a",
            };
            if color == wanted {
                let (x, to_x) = (x + WIDTH / 2, to_x + WIDTH / 2);
                let y = if is_circle { *y } else { y + height(from) };
                let middle = if is_circle { y.min(*to_y) - BETWEEN / 2 } else { (y + to_y) / 2 };
                writeln!(svg, "<path d=\"M{x} {y}C{x} {middle} {to_x} {middle} {to_x} {to_y}\" fill=\"none\" stroke=\"{color}\"/>")
                    .expect("a string takes all that is written");
            }
        }
    }
    for (name, (x, y)) in &places {
        let (middle, high) = (x + WIDTH / 2, height(name));
        write!(
            svg,
            "<rect x=\"{x}\" y=\"{y}\" width=\"{WIDTH}\" height=\"{high}\" rx=\"4\" fill=\"#f3f6fa\" stroke=\"#48566a\"/>\n\
             <text x=\"{middle}\" y=\"{}\" text-anchor=\"middle\" font-size=\"14\" font-weight=\"bold\">{name}</text>\n",
            y + 18
        )
        .expect("a string takes all that is written");
        for (at, line) in text[name].iter().enumerate() {
            let y = y + 34 + LINE * i64::try_from(at).unwrap_or(0);
            writeln!(
                svg,
                "<text x=\"{middle}\" y=\"{y}\" text-anchor=\"middle\" fill=\"#48566a\">{line}</text>"
            )
            .expect("a string takes all that is written");
        }
    }
    svg.push_str("</svg>\n");
    svg
}

/// How many layers are below each group: one more than below what it uses.
fn ranks(edges: &BTreeMap<String, BTreeSet<String>>, groups: &[Vec<String>]) -> Vec<usize> {
    let mut ranks = vec![0; groups.len()];
    for _ in groups {
        for (at, group) in groups.iter().enumerate() {
            let used = group.iter().flat_map(|name| &edges[name]).filter(|name| !group.contains(name));
            let below = used.filter_map(|name| groups.iter().position(|other| other.contains(name)));
            ranks[at] = below.map(|below| ranks[below] + 1).max().unwrap_or(0);
        }
    }
    ranks
}

fn reaches(edges: &BTreeMap<String, BTreeSet<String>>, from: &str, to: &str) -> bool {
    let (mut seen, mut open) = (BTreeSet::new(), vec![from]);
    while let Some(name) = open.pop() {
        for next in edges.get(name).into_iter().flatten() {
            if next == to {
                return true;
            }
            if seen.insert(next) {
                open.push(next);
            }
        }
    }
    false
}

/// Names in lines that fit a box.
fn wrapped(names: &[String]) -> Vec<String> {
    let mut lines: Vec<String> = vec![];
    for name in names {
        match lines.last_mut().filter(|line| line.len() + 2 + name.len() <= LETTERS) {
            Some(line) => write!(line, ", {name}").expect("a string takes all that is written"),
            None => lines.push(name.clone()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(edges: &[(&str, &[&str])]) -> BTreeMap<String, BTreeSet<String>> {
        edges
            .iter()
            .map(|(from, to)| (from.to_string(), to.iter().map(|to| to.to_string()).collect()))
            .collect()
    }

    #[test]
    fn what_is_used_stands_below() {
        let edges = graph(&[("a", &["b", "c"]), ("b", &["c"]), ("c", &[])]);
        let svg = draw(&edges, &BTreeMap::new());
        let y = |name: &str| {
            let before = &svg[..svg.find(&format!(">{name}<")).unwrap()];
            let y = &before[before.rfind(" y=\"").unwrap() + 4..];
            y[..y.find('"').unwrap()].parse::<i64>().unwrap()
        };
        assert!(y("a") < y("b") && y("b") < y("c"), "{svg}");
        assert_eq!(svg.matches("#d5dae1").count(), 1, "a to c is a way over b as well");
        assert_eq!(svg.matches("#c62828").count(), 0);
    }

    #[test]
    fn circles_are_red_and_on_one_height() {
        let edges = graph(&[("a", &["b"]), ("b", &["a", "c"]), ("c", &[])]);
        let svg = draw(&edges, &BTreeMap::new());
        assert_eq!(svg.matches("#c62828").count(), 2);
    }
}
