//! Costs of purchase and operation of a machine, in energy and money (LIA §7).

use serde::{Deserialize, Serialize};

const HOURS_PER_YEAR: f64 = 365.0 * 24.0;
const PRICED_TOKENS: f64 = 1e6;

/// Power and price of a whole machine.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct OperatingCosts {
    /// Power under load.
    pub watts: f64,
    /// Price; 0 if it is already paid for, so that only energy counts.
    pub price_usd: f64,
    /// Years over which the price is spread, at constant load.
    #[serde(default = "years")]
    pub years: f64,
    #[serde(default = "usd_per_kwh")]
    pub usd_per_kwh: f64,
}

const fn years() -> f64 {
    3.0
}

const fn usd_per_kwh() -> f64 {
    0.1
}

impl OperatingCosts {
    /// Returns the energy of a million tokens, in kWh.
    pub fn kwh_per_million(&self, tokens_per_s: f64) -> f64 {
        self.watts / 1e3 * hours_per_million(tokens_per_s)
    }

    /// Returns the cost of a million tokens in USD: energy, and the price of the machine for the
    /// time that they take.
    pub fn usd_per_million(&self, tokens_per_s: f64) -> f64 {
        let usd_per_hour = self.price_usd / (self.years * HOURS_PER_YEAR);
        let energy_usd = self.kwh_per_million(tokens_per_s) * self.usd_per_kwh;
        energy_usd + usd_per_hour * hours_per_million(tokens_per_s)
    }
}

/// Returns the hours that a million tokens take.
fn hours_per_million(tokens_per_s: f64) -> f64 {
    PRICED_TOKENS / tokens_per_s / 3600.0
}

#[cfg(test)]
mod tests {
    use super::OperatingCosts;

    #[test]
    fn a_million_tokens_by_hand() {
        // 1000 tokens/s: a million takes 1000 s, or 1/3.6 hours.
        let running =
            OperatingCosts { watts: 720.0, price_usd: 26_280.0, years: 3.0, usd_per_kwh: 0.25 };
        assert!((running.kwh_per_million(1000.0) - 0.2).abs() < 1e-12);
        // 26280 USD over 3 x 8760 hours is 1 USD per hour.
        assert!((running.usd_per_million(1000.0) - (0.05 + 1.0 / 3.6)).abs() < 1e-12);
        let paid = OperatingCosts { price_usd: 0.0, ..running };
        assert!((paid.usd_per_million(1000.0) - 0.05).abs() < 1e-12);
        assert!((paid.usd_per_million(500.0) - 0.1).abs() < 1e-12);
    }
}
