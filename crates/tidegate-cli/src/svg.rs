//! Self-contained SVG charts with styles for light and dark backgrounds.

/// An SVG file under construction.
#[derive(Debug)]
pub(crate) struct SvgCanvas(String);

impl SvgCanvas {
    /// Begins a chart of this width and height.
    pub(crate) fn open([width, height]: [u32; 2], title: &str, style: &str) -> SvgCanvas {
        let title = escaped(title);
        SvgCanvas(format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
             height=\"{height}\" role=\"img\">\n<title>{title}</title>\n<style>{style}</style>\n\
             <rect class=\"ground\" width=\"{width}\" height=\"{height}\"/>\n"
        ))
    }

    /// Ends the file.
    pub(crate) fn close(mut self) -> String {
        self.0.push_str("</svg>\n");
        self.0
    }

    /// Appends an element.
    pub(crate) fn put(&mut self, element: &str) {
        self.0.push_str(element);
    }

    pub(crate) fn text(&mut self, x: u32, y: u32, class: &str, anchor: &str, text: &str) {
        let text = escaped(text);
        self.put(&format!(
            "<text x=\"{x}\" y=\"{y}\" class=\"{class}\" text-anchor=\"{anchor}\">{text}</text>\n"
        ));
    }

    pub(crate) fn line(&mut self, class: &str, [x1, y1, x2, y2]: [u32; 4]) {
        self.put(&format!("<line class=\"{class}\" x1=\"{x1}\" y1=\"{y1}\" x2=\"{x2}\" y2=\"{y2}\"/>\n"));
    }

    pub(crate) fn bar(&mut self, class: &str, [x, y, width, height]: [u32; 4]) {
        self.put(&format!(
            "<rect class=\"{class}\" x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" rx=\"2\"/>\n"
        ));
    }

    /// Appends a path.
    pub(crate) fn path(&mut self, class: &str, commands: &str) {
        self.put(&format!("<path class=\"{class}\" d=\"{commands}\"/>\n"));
    }
}

/// Escapes text for XML.
pub(crate) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            letter if letter.is_control() => out.push(' '),
            letter => out.push(letter),
        }
    }
    out
}
