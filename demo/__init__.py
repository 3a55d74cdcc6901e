"""The demo that ``make demo`` runs."""
