"""What a run says to a reader: the terminal answer, figures and the HTML page. The only place with matplotlib."""
