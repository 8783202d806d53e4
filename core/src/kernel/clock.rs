//! UTC wall clock, as the journal writes it.

use std::time::{SystemTime, UNIX_EPOCH};

pub struct Utc {
    days: i64,
    millis_of_day: i64,
}

impl Utc {
    pub fn now() -> Utc {
        // A clock before 1970 is broken. The journal then writes 1970 and continues.
        let millis = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |elapsed| elapsed.as_millis() as i64);
        Utc::from_millis(millis)
    }

    fn from_millis(millis: i64) -> Utc {
        Utc { days: millis.div_euclid(86_400_000), millis_of_day: millis.rem_euclid(86_400_000) }
    }

    /// Since 1970.
    pub fn day(&self) -> i64 {
        self.days
    }

    /// `2026-11-15`.
    pub fn date(&self) -> String {
        // Howard Hinnant, "chrono-compatible low-level date algorithms", civil_from_days: years
        // begin in March.
        let shifted = self.days + 719_468;
        let era = shifted.div_euclid(146_097);
        let day_of_era = shifted.rem_euclid(146_097);
        let year_of_era =
            (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let march_month = (5 * day_of_year + 2) / 153;
        let day = day_of_year - (153 * march_month + 2) / 5 + 1;
        let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
        let year = year_of_era + era * 400 + i64::from(month <= 2);
        format!("{year:04}-{month:02}-{day:02}")
    }

    /// `2026-11-15T05:00:00.123Z`.
    pub fn timestamp(&self) -> String {
        let (seconds, millis) = (self.millis_of_day / 1000, self.millis_of_day % 1000);
        let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
        format!("{}T{hours:02}:{minutes:02}:{seconds:02}.{millis:03}Z", self.date())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_come_out_right() {
        for (millis, expected) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (1_078_012_800_000 - 1, "2004-02-28T23:59:59.999Z"),
            (1_794_718_800_123, "2026-11-15T05:00:00.123Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(Utc::from_millis(millis).timestamp(), expected);
        }
    }
}
