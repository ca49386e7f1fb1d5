"""Read batch views and speed views for a query."""
