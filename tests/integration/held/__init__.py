"""Programs without a grant: found, held, and held on."""
