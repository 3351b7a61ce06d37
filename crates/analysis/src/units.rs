//! Numbers as people read them: sizes with a unit, thousands apart.

/// `bytes` with a unit, as people read it.
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "kB", "MB", "GB", "TB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

/// A number with its thousands apart.
pub fn thousands(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(c);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_as_people_read_them() {
        assert_eq!([0, 999, 1_000, 98_362_432].map(size), ["0 B", "999 B", "1.0 kB", "98.4 MB"]);
        assert_eq!(
            [0, 999, 1_000, 134_515_008].map(thousands),
            ["0", "999", "1,000", "134,515,008"]
        );
    }
}
