"""HAMi's formats (v2.10), for both services: names, configuration files, the texts of its protocol
with device plugins, and its metrics. What Sluice does with them is decided where they are used."""
