"""The presentation of a run: the terminal answer, plots and the HTML page. The only place with Matplotlib."""
