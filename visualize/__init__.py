"""Pages, contact sheets and figures from result rows and feature stores; nothing here trains or evaluates."""
