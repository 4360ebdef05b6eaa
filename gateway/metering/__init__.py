"""What a gateway reports for bills: events, and how they reach metering whatever fails on the way."""
