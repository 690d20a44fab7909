"""The queue service between the engine and its doors: what is applied, submitted and reported goes
in, what is decided comes out, each decision written before anybody hears of it."""
