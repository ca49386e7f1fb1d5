"""What Prometheus needs to watch an installation: alerting rules, and where to scrape."""
